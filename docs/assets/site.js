// The copy button of a terminal's block takes the commands, not the prompts and what they print.
document$.subscribe(() => {
  for (const button of document.querySelectorAll(".md-clipboard, .md-code__button")) {
    const code = button.closest("pre, .highlight")?.querySelector("code");
    const lines = code?.textContent.split("\n") ?? [];
    const commands = [];
    for (const line of lines) {
      if (line.startsWith("$ ")) commands.push(line.slice(2));
      else if (line.startsWith("> ") && commands.at(-1)?.endsWith("\\")) commands.push(line.slice(2));
    }
    if (commands.length) button.setAttribute("data-clipboard-text", commands.join("\n") + "\n");
  }
});

// What scrolls is reached by the keyboard, and no two of a page's parts have one name.
document$.subscribe(() => {
  document.querySelectorAll(".md-code__nav").forEach((nav, at) => {
    nav.setAttribute("aria-label", `Block ${at + 1}`);
  });
  for (const part of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
  }
});
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
