"use strict";
/* Figures by uPlot (templates/report/uplot) from plain values: series over time.
   figures.draw(host, values, view) gives a model that page.js moves by key and
   pointer: {count, position, show, hide, key, table}. Colours come from the style sheet. */
const figures = (() => {
  const DAY = 86400;
  const colour = (name) => {
    const probe = document.createElement("i");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };

  /* Words */
  function number(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 1e7) return `${(value / 1e6).toLocaleString("en", { maximumFractionDigits: 1 })} M`;
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(4)));
  }
  const dateText = (date) => date.toUTCString().slice(5, 16).replace(/^0/, "");
  const stepAt = (steps, index) => steps.filter(([start]) => start <= index).pop()?.[1] ?? null;

  /* uPlot with what all figures have alike; `marks` draws over it, `say` has the words of a point. */
  function plot(host, options, data, marks, say, table) {
    const last = data[0].length - 1;
    const axis = { stroke: colour("quiet"), grid: { stroke: colour("edge-soft"), width: 1 }, ticks: { stroke: colour("edge"), width: 1 } };
    host.replaceChildren();
    const made = new uPlot({
      width: Math.max(host.clientWidth, 240), height: 240, legend: { show: false },
      cursor: { drag: { x: false, y: false }, y: false, points: { size: 9, fill: colour("page"), stroke: colour("ink"), width: 2 } },
      ...options,
      axes: [{ ...axis, ...options.axes?.[0] }, { ...axis, size: 62, values: (_, all) => all.map(number) }],
      hooks: { draw: [(u) => { u.ctx.save(); marks(u, u.ctx); u.ctx.restore(); }] },
    }, data, host);
    let at = last;
    const show = (index) => {
      at = Math.max(0, Math.min(last, index));
      made.setCursor({ left: made.valToPos(data[0][at], "x"), top: made.bbox.height / 2 / devicePixelRatio });
      return say(at);
    };
    const keys = { ArrowLeft: () => at - 1, ArrowRight: () => at + 1, Home: () => 0, End: () => last, PageUp: () => at - 10, PageDown: () => at + 10 };
    return {
      count: last + 1, table,
      get position() { return at; },
      point: (x) => show(made.posToIdx(x - made.over.offsetLeft)),
      key: (name) => (name in keys ? show(keys[name]()) : null),
      show: () => show(at),
      hide: () => made.setCursor({ left: -10, top: -10 }),
    };
  }

  function cross(ctx, x, y) {
    const r = 4 * devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(x - r, y - r); ctx.lineTo(x + r, y + r);
    ctx.moveTo(x - r, y + r); ctx.lineTo(x + r, y - r);
    ctx.stroke();
  }

  /* A series over time */
  function time(host, data, view) {
    const start = Date.parse(`${data.start}T00:00Z`) / 1000;
    const last = data.day[data.day.length - 1];
    const first = view.nights ? Math.max(0, data.day.findIndex((day) => day > last - view.nights)) : 0;
    const part = (each) => data.day.slice(first).map((_, i) => each(i + first));
    const bound = (k) => part((i) => stepAt(data.bound, i)?.[k] ?? null);
    const level = (k) => part((i) => {
      const now = data.levels.find(([from, to]) => from <= i && i <= to);
      return now ? now[2] + k * now[3] : null;
    });
    const columns = [
      part((i) => start + data.day[i] * DAY), part((i) => data.value[i]), level(2), level(-2), level(0),
      bound(0), bound(1), bound(2), ...(data.low.length ? [part((i) => data.low[i]), part((i) => data.high[i])] : []),
    ];
    const paths = uPlot.paths.stepped({ align: 1 });
    const line = (name, more = {}) => ({ stroke: colour(name), width: 1, paths, points: { show: false }, ...more });
    const whisker = { stroke: "transparent", points: { show: false } };
    const dots = { stroke: colour("dot"), paths: () => null, points: { show: true, size: 4.5, fill: colour("dot") } };
    const edge = line("band", { stroke: "transparent" });
    const options = {
      scales: { y: { range: (_, low, high) => edges(columns, low, high) } },
      axes: [{ space: 70, values: (_, all) => all.map((at) => dateText(new Date(at * 1000)).slice(0, -5)) }],
      bands: [{ series: [2, 3], fill: colour("band") }, ...(data.low.length ? [{ series: [9, 8], fill: colour("band") }] : [])],
      series: [{}, dots, edge, edge, line("level", { width: 2 }), line("bound", { dash: [4, 4] }), line("bound"), line("bound"), ...(data.low.length ? [whisker, whisker] : [])],
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
    };
    return plot(host, options, columns, (u, ctx) => nightMarks(u, ctx, data, start, first), (i) => nightWords(data, i + first), () => timeTable(data));
  }

  /* A distant bound would flatten the series: bounds count where they are near the values. */
  function edges(columns, low, high) {
    const values = [1, 8, 9].flatMap((k) => columns[k] ?? []).filter((value) => value !== null);
    let [from, to] = [Math.min(...values), Math.max(...values)];
    const reach = to - from || 0.1 * Math.abs(to) || 1;
    for (const value of [5, 6, 7].flatMap((k) => columns[k])) {
      if (value !== null && value > from - reach && value < to + reach) [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
    [from, to] = [Math.max(low, from - reach), Math.min(high, to + reach)];
    return [from - 0.06 * (to - from), to + 0.06 * (to - from)];
  }

  /* Nights that failed, and changes with their size */
  function nightMarks(u, ctx, data, start, first) {
    const x = (day) => u.valToPos(start + day * DAY, "x", true);
    const { left, top, height } = u.bbox;
    [ctx.lineWidth, ctx.strokeStyle] = [2 * devicePixelRatio, colour("bad")];
    for (const i of data.bad) if (i >= first) cross(ctx, x(data.day[i]), u.valToPos(data.value[i], "y", true));
    for (const day of data.lost) if (x(day) >= left) cross(ctx, x(day), top + height - 8 * devicePixelRatio);
    ctx.font = `600 ${12 * devicePixelRatio}px system-ui, sans-serif`;
    data.changes.filter((change) => change.night >= first).forEach((change, i) => {
      const at = x(data.day[change.night] - 0.5);
      ctx.strokeStyle = ctx.fillStyle = colour(change.tone || "quiet");
      ctx.fillRect(at, top, devicePixelRatio, height);
      ctx.textAlign = at > left + u.bbox.width - 60 * devicePixelRatio ? "right" : "left";
      ctx.fillText(` ${change.label} `, at, top + (12 + 13 * (i % 2)) * devicePixelRatio);
    });
  }

  function nightWords(data, i) {
    const [reference, low, high] = stepAt(data.bound, i) || [];
    const release = stepAt(data.release, i), driver = stepAt(data.driver, i);
    const runs = data.runs.length && data.runs[i] > 1 ? ` (${number(data.low[i])} to ${number(data.high[i])} in ${data.runs[i]} runs)` : "";
    const rest = [
      data.bad.includes(i) && "did not pass",
      reference && `reference ${number(reference)}`,
      low && `lower bound ${number(low)}`,
      high && `upper bound ${number(high)}`,
      release && `release ${release}`,
      driver && `driver ${driver}`,
      data.node[i] && `on ${data.node[i]}`,
      ...data.changes.filter((change) => change.night === i).map((change) => change.text),
    ];
    const date = new Date(Date.parse(`${data.start}T00:00Z`) + data.day[i] * DAY * 1000);
    return {
      head: `${dateText(date)}: ${number(data.value[i])} ${data.unit}`,
      rest: `${runs}${rest.filter(Boolean).map((text) => `, ${text}`).join("")}`,
    };
  }

  function timeTable(data) {
    const day = (offset) => new Date(Date.parse(`${data.start}T00:00Z`) + offset * DAY * 1000).toISOString().slice(0, 10);
    const rows = data.day.map((offset, i) => [
      day(offset), number(data.value[i]), ...(data.low.length ? [`${number(data.low[i])} to ${number(data.high[i])}`] : []),
      number(stepAt(data.bound, i)?.[0]), stepAt(data.release, i) || "–", data.node[i] || "–",
      [data.bad.includes(i) ? "did not pass" : "", ...data.changes.filter((c) => c.night === i).map((c) => c.text)].filter(Boolean).join("; "),
    ]);
    for (const offset of data.lost) rows.push([day(offset), "no number"]);
    rows.sort((a, b) => (a[0] < b[0] ? 1 : -1));
    return { head: ["Night", data.unit || "Value", ...(data.low.length ? ["Runs"] : []), "Reference", "Release", "Node", "Notes"], rows };
  }

  return { draw: time };
})();
