// What a keyboard or a screen reader needs beside the theme: the search has a name, what scrolls can be focused, and the
// buttons of code blocks are no landmarks. Short code, such as an option, stays on one line.
addEventListener("load", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-typeset pre > code, .md-typeset__scrollwrap, p:has(> img)").forEach((part) => {
    part.tabIndex = 0;
    // Without a mouse, the theme removes it again.
    new MutationObserver(() => part.tabIndex < 0 && (part.tabIndex = 0)).observe(part, { attributeFilter: ["tabindex"] });
  });
  document.querySelectorAll(".md-code__nav").forEach((part) => part.setAttribute("role", "none"));
  document.querySelectorAll(".md-typeset :not(pre) > code").forEach((part) => {
    if (part.textContent.length <= 24) part.style.whiteSpace = "nowrap";
  });
});
