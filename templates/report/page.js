/* The page around the figures: colours, filter, rows that open, figures drawn when in view. */
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (selector, root = document) => root.querySelector(selector);
  const values = (name) => JSON.parse(document.getElementById(`${name}-data`).textContent);
  const view = { nights: 0 };

  /* Colours: remembered where the browser lets a local file remember. */
  function remembered(value) {
    try {
      if (value === undefined) return localStorage.getItem("hpcdl-theme") || "auto";
      localStorage.setItem("hpcdl-theme", value);
    } catch { /* a browser that keeps nothing */ }
    return value ?? "auto";
  }
  function theme(value) {
    if (value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = value;
  }
  for (const input of all(".theme input")) {
    input.checked = input.value === remembered();
    input.addEventListener("change", () => { theme(remembered(input.value)); redraw(); });
  }
  theme(remembered());

  /* Figures */
  const drawn = new Map();
  function draw(figure) {
    const plot = one(".plot", figure);
    const known = drawn.get(figure);
    const data = known ? known.data : values(figure.id);
    const model = figures.draw(plot, data, view);
    drawn.set(figure, { data, model, stale: false });
    if (!known) listen(figure, plot);
    plot.setAttribute("aria-valuemax", String(model.count - 1));
    say(figure, model.show());
    if (document.activeElement !== plot) model.hide();
  }
  function say(figure, words) {
    if (!words) return;
    const { model } = drawn.get(figure);
    const readout = one(".readout", figure), plot = one(".plot", figure);
    const strong = document.createElement("b");
    strong.textContent = words.head;
    readout.replaceChildren(strong, words.rest);
    plot.setAttribute("aria-valuenow", String(model.position));
    plot.setAttribute("aria-valuetext", words.head + words.rest);
  }
  function listen(figure, plot) {
    const model = () => drawn.get(figure).model;
    plot.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const words = model().key(event.key);
      if (words) {
        event.preventDefault();
        say(figure, words);
      }
    });
    const under = (event) => {
      const box = plot.getBoundingClientRect();
      say(figure, model().point(event.clientX - box.left));
    };
    plot.addEventListener("pointermove", under);
    plot.addEventListener("pointerdown", under);
    plot.addEventListener("focus", () => say(figure, model().show()));
    const leave = () => { if (document.activeElement !== plot) model().hide(); };
    plot.addEventListener("pointerleave", leave);
    plot.addEventListener("blur", leave);
    const details = one("details.values", figure);
    details.addEventListener("toggle", () => { if (details.open) fill(one(".scroll", details), model().table()); });
  }
  function fill(place, { head, rows }) {
    if (place.firstChild) return;
    const table = document.createElement("table");
    const line = table.createTHead().insertRow();
    for (const text of head) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = text;
      line.append(cell);
    }
    const body = table.createTBody();
    for (const cells of rows) {
      const row = body.insertRow();
      cells.forEach((text, i) => {
        const cell = i ? row.insertCell() : row.appendChild(document.createElement("th"));
        if (!i) cell.scope = "row";
        cell.textContent = text;
      });
    }
    place.append(table);
  }
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      entry.target.toggleAttribute("data-seen", entry.isIntersecting);
      if (entry.isIntersecting && (drawn.get(entry.target)?.stale ?? true)) draw(entry.target);
    }
  }, { rootMargin: "300px" });
  const charts = all("figure");
  for (const figure of charts) seen.observe(figure);
  function redraw() {
    for (const [figure] of drawn) {
      if (figure.hasAttribute("data-seen")) draw(figure);
      else drawn.get(figure).stale = true;
    }
  }
  addEventListener("beforeprint", () => {
    for (const figure of charts) if (!drawn.has(figure)) draw(figure);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(redraw);
  });
  for (const input of all(".ranges input")) {
    input.addEventListener("change", () => {
      view.nights = Number(input.value);
      redraw();
    });
  }

  /* Rows that open */
  function open(row, wide) {
    const button = one(".open", row), detail = document.getElementById(button.getAttribute("aria-controls"));
    button.setAttribute("aria-expanded", String(wide));
    detail.hidden = !wide;
  }
  const buttons = all(".open");
  for (const button of buttons) {
    const row = button.closest("tr");
    button.addEventListener("click", () => open(row, button.getAttribute("aria-expanded") !== "true"));
  }
  one(".verdicts")?.addEventListener("keydown", (event) => {
    if (!event.target.matches(".open")) return;
    const shown = buttons.filter((button) => !button.closest("tr").hidden);
    const at = shown.indexOf(event.target);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: shown.length - 1 }[event.key];
    if (to === undefined || !shown[to]) return;
    event.preventDefault();
    shown[to].focus();
  });
  function follow() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.matches("tr.row")) {
      open(target, true);
      one(".open", target).focus({ preventScroll: true });
    } else if (target.matches("figure")) one(".plot", target).focus({ preventScroll: true });
    target.scrollIntoView({ block: "start" });
  }
  addEventListener("hashchange", follow);
  follow();

  /* Filter: words, partition and verdicts, over the whole page */
  const words = one("#search"), partition = one("#partition"), chips = all(".chip");
  function filter() {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const where = partition ? partition.value : "";
    const kinds = chips.filter((chip) => chip.getAttribute("aria-pressed") === "true").map((chip) => chip.dataset.status);
    const fits = (item) => {
      const text = item.dataset.text.toLowerCase();
      return (!where || (item.dataset.partition ?? where) === where) && wanted.every((word) => text.includes(word));
    };
    let shown = 0;
    const rows = all("tr.row");
    for (const row of rows) {
      row.hidden = !fits(row) || (kinds.length > 0 && !kinds.includes(row.dataset.status));
      const opened = one(".open", row).getAttribute("aria-expanded") === "true";
      document.getElementById(one(".open", row).getAttribute("aria-controls")).hidden = row.hidden || !opened;
      shown += row.hidden ? 0 : 1;
    }
    for (const item of all("figure, li.cause")) item.hidden = !fits(item);
    for (const section of all("section")) {
      const none = one(".none", section);
      if (none) none.hidden = all("figure, tr.row", section).some((item) => !item.hidden);
    }
    const count = `${rows.length} ${rows.length === 1 ? "check" : "checks"}`;
    one(".shown").textContent = shown === rows.length ? count : `${shown} of ${count}`;
  }
  if (words) {
    words.addEventListener("input", filter);
    partition?.addEventListener("change", filter);
    for (const chip of chips) {
      chip.addEventListener("click", () => {
        chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
        filter();
      });
    }
    words.form.addEventListener("submit", (event) => event.preventDefault());
    addEventListener("keydown", (event) => {
      if (event.key === "/" && !event.target.matches("input, select, textarea")) {
        event.preventDefault();
        words.focus();
      }
    });
    filter();
  }
})();
