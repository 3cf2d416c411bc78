"""The systemd units that the probe queries, and the folders of unit files."""

TIME_SERVICES = ("chrony", "chronyd", "systemd-timesyncd", "ntp", "ntpd", "ntpsec", "ptp4l", "phc2sys")
"""Services that set the clock."""

UNIT_SEARCH_PATH = (
    "/etc/systemd/system", "/run/systemd/system", "/run/systemd/transient", "/run/systemd/generator",
    "/run/systemd/generator.late", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system",
)  # fmt: skip
"""Folders of systemd units. They are searched first, because systemd searches all in each query for an unknown unit."""
