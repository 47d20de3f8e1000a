"use strict";
/* Draws figures as SVG from plain values, at the size of the element that holds them.
   figures.draw(host, kind, values, view) -> {stops, move, table, ...}; kinds: time, lines, heat.
   Text is only ever set as text, colours come from the style sheet, so that a change of colours
   needs no new drawing. A figure's "stops" are what a reader can go through by key or pointer. */
const figures = (() => {
  const DAY = 86400000;
  const MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");

  function svg(name, attributes = {}, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function canvas(host, height) {
    const width = Math.max(host.clientWidth, 240);
    const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    const add = (name, attributes, text) => root.appendChild(svg(name, attributes, text));
    host.replaceChildren(root);
    return { root, width, height, add };
  }

  /* Words */
  function number(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 1e7) return `${(value / 1e6).toLocaleString("en", { maximumFractionDigits: 1 })} M`;
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(4)));
  }
  const percent = (fraction, digits = 1) =>
    `${Math.abs(fraction) < 0.0005 ? "±" : fraction < 0 ? "−" : "+"}${(100 * Math.abs(fraction)).toFixed(digits)} %`;
  const dayOf = (start, offset) => new Date(Date.parse(`${start}T00:00Z`) + offset * DAY);
  const dateText = (date) => `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]} ${date.getUTCFullYear()}`;
  const textWidth = (text) => 6.7 * text.length;

  /* Scales */
  function scale(from, to, low, high) {
    const factor = (high - low) / (to - from || 1);
    const place = (value) => low + (value - from) * factor;
    place.back = (pixel) => from + (pixel - low) / (factor || 1);
    return place;
  }
  function logScale(from, to, low, high) {
    const inner = scale(Math.log2(from), Math.log2(to), low, high);
    const place = (value) => inner(Math.log2(value));
    place.back = (pixel) => 2 ** inner.back(pixel);
    return place;
  }
  function ticks(low, high, count) {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough);
    const found = [];
    for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at += 1) found.push(at * step);
    return found;
  }

  /* Labels at the right edge that do not overlap: [{y, text, kind}] */
  function edgeLabels(add, x, labels, top, bottom) {
    labels.sort((a, b) => a.y - b.y);
    labels.forEach((label, i) => {
      label.at = Math.max(label.y, i ? labels[i - 1].at + 14 : top);
    });
    for (let i = labels.length - 1; i >= 0; i -= 1) {
      const limit = i + 1 < labels.length ? labels[i + 1].at - 14 : bottom;
      labels[i].at = Math.min(labels[i].at, limit);
    }
    for (const label of labels) add("text", { x, y: label.at + 4, class: label.kind }, label.text);
  }

  function valueAxis(add, y, low, high, left, right) {
    for (const value of ticks(low, high, 4)) {
      const at = Math.round(y(value)) + 0.5;
      add("line", { x1: left, x2: right, y1: at, y2: at, class: "grid" });
      add("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, number(value));
    }
  }

  function dateAxis(add, x, start, from, to, y, right) {
    const span = to - from;
    const narrow = (x(to) - x(from)) / Math.max(span, 1);
    let past = -Infinity;
    for (let offset = Math.ceil(from); offset <= to; offset += 1) {
      const date = dayOf(start, offset);
      const first = date.getUTCDate() === 1;
      const weekly = span <= 45 && date.getUTCDay() === 1;
      if (!first && !weekly) continue;
      const at = x(offset);
      const month = MONTHS[date.getUTCMonth()];
      let text = weekly && !first ? `${date.getUTCDate()} ${month}` : month;
      if (first && date.getUTCMonth() === 0) text = String(date.getUTCFullYear());
      if (at - past < textWidth(text) + 10 + narrow || at + textWidth(text) / 2 > right + 20) continue;
      add("line", { x1: at, x2: at, y1: y, y2: y + 4, class: "tick" });
      add("text", { x: at, y: y + 17, "text-anchor": "middle" }, text);
      past = at + textWidth(text) / 2;
    }
    if (past > -Infinity) return;
    const date = dayOf(start, to);
    add("text", { x: x(to), y: y + 17, "text-anchor": "middle" }, `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}`);
  }

  /* A series over time */
  function time(host, data, view) {
    const all = data.day.length;
    const last = data.day[all - 1];
    const begin = view.nights ? last - view.nights + 1 : data.day[0];
    const first = Math.max(0, data.day.findIndex((day) => day >= begin));
    const from = Math.max(begin, data.day[first]);
    const { root, width, height, add } = canvas(host, 220);
    const edges = edgesOf(data, first);
    const widest = Math.max(...[edges.low, edges.high].map((v) => textWidth(number(v))));
    const box = { left: Math.max(38, widest + 12), right: width - 74, top: 28, bottom: height - 44 };
    const x = scale(from - 0.5, last + 0.5, box.left, box.right);
    const y = scale(edges.low, edges.high, box.bottom, box.top);
    const range = { first, end: all, x, y, box, from, last, edges };

    bounds(add, data, range);
    valueAxis(add, y, edges.low, edges.high, box.left, box.right);
    add("line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, class: "axis" });
    dateAxis(add, x, data.start, from, last, box.bottom, box.right);
    nights(add, data, range);
    levels(add, data, range);
    marks(add, data, range);
    const cursor = add("g", { visibility: "hidden" });
    cursor.append(svg("line", { y1: box.top, y2: box.bottom, class: "cursor" }), svg("circle", { r: 4.5, class: "ring" }));
    const stops = [];
    for (let i = first; i < all; i += 1) stops.push({ x: x(data.day[i]), y: y(data.value[i]), say: () => nightWords(data, i) });
    return follow(root, cursor, stops, { words: "nights", table: () => timeTable(data) });
  }

  function edgesOf(data, first) {
    const part = (list) => (list.length ? list : data.value).slice(first);
    let low = Math.min(...part(data.low));
    let high = Math.max(...part(data.high));
    // A distant bound would flatten the series: then a label at the edge names it.
    const reach = high - low || 0.1 * Math.abs(high);
    const near = (value) => value !== null && value > low - reach && value < high + reach;
    const seen = data.bound.filter((step, i) => i === data.bound.length - 1 || data.bound[i + 1][0] > first);
    for (const [, [reference, lower, upper]] of seen) {
      for (const value of [reference, lower, upper].filter(near)) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
    const room = 0.06 * (high - low) || 0.05 * Math.abs(high) || 1;
    return { low: low - room, high: high + room };
  }

  function stretches(steps, range, data) {
    return steps.map(([index, value], i) => {
      const end = i + 1 < steps.length ? steps[i + 1][0] : range.end;
      const x1 = i === 0 ? range.from - 0.5 : data.day[Math.max(index, range.first)] - 0.5;
      const x2 = end < range.end ? data.day[end] - 0.5 : range.last + 0.5;
      return { value, shown: end > range.first, x1: range.x(Math.max(x1, range.from - 0.5)), x2: range.x(x2) };
    }).filter((one) => one.shown && one.x2 > one.x1);
  }

  function bounds(add, data, range) {
    const { box, y, edges } = range;
    const labels = [];
    const inside = (value) => value !== null && value >= edges.low && value <= edges.high;
    const parts = stretches(data.bound, range, data);
    parts.forEach(({ value: [reference, low, high], x1, x2 }, i) => {
      const newest = i === parts.length - 1;
      for (const [value, kind, name, outside] of [[reference, "reference-line", "reference"], [low, "bound", "bound", "below"], [high, "bound", "bound", "above"]]) {
        if (inside(value)) {
          const at = y(value);
          if (outside === "below") add("rect", { x: x1, y: at, width: x2 - x1, height: box.bottom - at, class: "out" });
          if (outside === "above") add("rect", { x: x1, y: box.top, width: x2 - x1, height: at - box.top, class: "out" });
          add("line", { x1, x2, y1: at, y2: at, class: kind });
          if (newest) labels.push({ y: at, text: name, kind: "" });
        } else if (newest && value !== null && outside) {
          labels.push({ y: outside === "below" ? box.bottom : box.top, text: `${outside === "below" ? "↓" : "↑"} ${number(value)}`, kind: "" });
        }
      }
    });
    range.labels = labels;
  }

  function nights(add, data, { first, end, x, y, box }) {
    let dots = "", whiskers = "", crosses = "";
    const bad = new Set(data.bad);
    const cross = (cx, cy) => `M${cx - 4} ${cy - 4}l8 8m0-8l-8 8`;
    for (let i = first; i < end; i += 1) {
      const cx = x(data.day[i]).toFixed(1), cy = y(data.value[i]).toFixed(1);
      if (bad.has(i)) crosses += cross(Number(cx), Number(cy));
      else dots += `M${cx} ${cy}h0`;
      if (data.low.length && data.high[i] > data.low[i]) whiskers += `M${cx} ${y(data.low[i]).toFixed(1)}V${y(data.high[i]).toFixed(1)}`;
    }
    for (const day of data.lost) if (x(day) >= box.left) crosses += cross(x(day), box.bottom - 6);
    add("path", { d: whiskers, class: end - first > 120 ? "whiskers dense" : "whiskers" });
    add("path", { d: dots, class: "dots" });
    add("path", { d: crosses, class: "crosses" });
  }

  function levels(add, data, range) {
    const { first, x, y, box, labels } = range;
    for (const [start, end, level, spread] of data.levels) {
      if (end < first) continue;
      const x1 = x(data.day[Math.max(start, first)] - 0.5), x2 = x(data.day[end] + 0.5);
      const top = Math.max(y(level + 2 * spread), box.top), bottom = Math.min(y(level - 2 * spread), box.bottom);
      add("rect", { x: x1, y: top, width: Math.max(x2 - x1, 1), height: Math.max(bottom - top, 1), class: "band" });
      add("line", { x1, x2, y1: y(level), y2: y(level), class: "level" });
    }
    const now = data.levels[data.levels.length - 1];
    if (now) labels.push({ y: y(now[2]), text: number(now[2]), kind: "strong" });
    edgeLabels(add, box.right + 8, labels, box.top, box.bottom);
  }

  function marks(add, data, range) {
    const { first, x, box } = range;
    let ends = [-Infinity, -Infinity];
    for (const change of data.changes) {
      if (change.night < first) continue;
      const at = Math.round(x(data.day[change.night] - 0.5)) + 0.5;
      const kind = change.tone || "neutral";
      const before = at + textWidth(change.label) > box.right + 60;
      const left = before ? at - 4 - textWidth(change.label) : at + 4;
      const row = ends.findIndex((end) => left > end + 6);
      if (row >= 0) {
        add("text", { x: before ? at - 4 : at + 4, y: 11 + 13 * row, "text-anchor": before ? "end" : "start", class: `change-label ${kind}` }, change.label);
        ends[row] = left + textWidth(change.label);
      }
      add("line", { x1: at, x2: at, y1: 4 + 13 * Math.max(row, 0), y2: box.bottom, class: `change ${kind}` });
    }
    let past = -Infinity;
    const short = shortNames(data.release.map(([, name]) => name));
    data.release.forEach(([index, long], i) => {
      const name = short.get(long);
      if (i + 1 < data.release.length && data.release[i + 1][0] <= first) return;
      const at = x(data.day[Math.max(index, first)] - 0.5);
      const y = box.bottom + 24;
      add("path", { d: `M${at} ${y}v10`, class: "release" });
      const room = Math.floor((nextRelease(data, i, range) - at - 12) / 6.7);
      const text = name.length > room ? `${name.slice(0, Math.max(room - 1, 0))}…` : name;
      if (room >= 3 && at > past) {
        add("text", { x: at + 5, y: y + 9 }, text);
        past = at + 5 + textWidth(text);
      }
    });
  }

  function nextRelease(data, i, { x, box, end }) {
    const next = data.release[i + 1];
    return next && next[0] < end ? x(data.day[next[0]] - 0.5) : box.right + 66;
  }

  /* Names without the parts that all of them share: releases differ in few of theirs. */
  function shortNames(all) {
    const names = [...new Set(all)];
    const parts = names.map((name) => name.split("-"));
    const shared = parts[0]?.filter((part) => names.length > 1 && parts.every((one) => one.includes(part))) || [];
    return new Map(names.map((name, i) => [name, parts[i].filter((part) => !shared.includes(part)).join("-") || name]));
  }

  function stepAt(steps, index) {
    let found = null;
    for (const [start, value] of steps) if (start <= index) found = value;
    return found;
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
    return {
      head: `${dateText(dayOf(data.start, data.day[i]))}: ${number(data.value[i])} ${data.unit}`,
      rest: `${runs}${rest.filter(Boolean).map((text) => `, ${text}`).join("")}`,
    };
  }

  function timeTable(data) {
    const several = data.low.length > 0;
    const head = ["Night", data.unit || "Value", ...(several ? ["Lowest", "Highest"] : []), "Reference", "Release", "Node", "Notes"];
    const rows = data.day.map((day, i) => [
      dayOf(data.start, day).toISOString().slice(0, 10), number(data.value[i]),
      ...(several ? [number(data.low[i]), number(data.high[i])] : []),
      number((stepAt(data.bound, i) || [null])[0]), stepAt(data.release, i) || "–", data.node[i] || "–",
      [data.bad.includes(i) ? "did not pass" : "", ...data.changes.filter((c) => c.night === i).map((c) => c.text)].filter(Boolean).join("; "),
    ]);
    for (const day of data.lost) rows.push([dayOf(data.start, day).toISOString().slice(0, 10), "no number"]);
    rows.sort((a, b) => (a[0] < b[0] ? 1 : -1));
    return { head, rows };
  }

  /* Lines over a number, such as ranks */
  function lines(host, data) {
    const points = data.lines.flatMap((line) => line.points);
    const { root, width, height, add } = canvas(host, 280);
    const xs = [...new Set(points.map((p) => p.x))].sort((a, b) => a - b);
    const high = Math.max(...points.map((p) => p.high ?? p.y)), low = Math.min(...points.map((p) => p.low ?? p.y));
    const log = data.log ?? (xs[0] > 0 && low > 0 && xs[xs.length - 1] / xs[0] > 8);
    const names = Math.max(...data.lines.map((line) => textWidth(line.name)));
    const box = { left: Math.max(38, textWidth(number(high)) + 12), right: width - names - 34, top: 26, bottom: height - 44 };
    const make = log ? logScale : scale;
    const x = make(log ? xs[0] : Math.min(0, xs[0]), xs[xs.length - 1], box.left + (log ? 12 : 0), box.right - 6);
    const y = make(log ? low / 1.7 : Math.min(0, low), high * (log ? 1.15 : 1.04), box.bottom, box.top);
    if (log) for (const value of powers(low, high)) {
      add("line", { x1: box.left, x2: box.right, y1: y(value), y2: y(value), class: "grid" });
      add("text", { x: box.left - 8, y: y(value) + 4, "text-anchor": "end" }, number(value));
    } else valueAxis(add, y, Math.min(0, low), high * 1.04, box.left, box.right);
    add("line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, class: "axis" });
    let past = -Infinity;
    for (const value of xs) {
      add("line", { x1: x(value), x2: x(value), y1: box.bottom, y2: box.bottom + 4, class: "tick" });
      if (x(value) - past < textWidth(number(value)) + 6) continue;
      add("text", { x: x(value), y: box.bottom + 17, "text-anchor": "middle" }, number(value));
      past = x(value);
    }
    add("text", { x: box.right, y: box.bottom + 34, "text-anchor": "end" }, data.x);
    add("text", { x: 0, y: 10 }, data.unit || "");
    const labels = [], stops = [];
    let colour = 0;
    for (const line of data.lines) {
      const place = line.ideal ? -1 : colour++ % 6;
      oneLine(add, line, place, x, y, data, stops);
      const end = line.points[line.points.length - 1];
      labels.push({ y: y(end.y), text: line.name, kind: line.ideal ? "" : `f${place}`, place });
    }
    edgeLabels(add, box.right + 26, labels, box.top, box.bottom);
    for (const { place, at } of labels) {
      if (place < 0) add("path", { d: `M${box.right + 12} ${at}h10`, class: "ideal" });
      else add("path", { d: mark(place, box.right + 17, at), class: `f${place}` });
    }
    const cursor = add("g", { visibility: "hidden" });
    cursor.append(svg("line", { y1: box.top, y2: box.bottom, class: "cursor" }), svg("circle", { r: 5, class: "ring" }));
    return follow(root, cursor, stops, { words: "points", table: () => linesTable(data) });
  }

  function powers(low, high) {
    const found = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high) + 1; p += 1) {
      for (const n of high / low > 50 ? [1] : [1, 2, 5]) found.push(n * 10 ** p);
    }
    return found.filter((value) => value >= low / 1.7 && value <= high * 1.15);
  }

  function oneLine(add, line, place, x, y, data, stops) {
    const path = line.points.map((p, i) => `${i ? "L" : "M"}${x(p.x).toFixed(1)} ${y(p.y).toFixed(1)}`).join("");
    if (place < 0) {
      add("path", { d: path, class: "ideal" });
      return;
    }
    add("path", { d: path, class: `line s${place}` });
    for (const p of line.points) {
      const cx = x(p.x), cy = y(p.y);
      if (p.high > p.low) add("path", { d: `M${cx - 4} ${y(p.low)}h8m-4 0V${y(p.high)}m-4 0h8`, class: `whisker s${place}` });
      add("path", { d: mark(place, cx, cy), class: `f${place}` });
      const last = p === line.points[line.points.length - 1];
      if (p.label) add("text", { x: last ? cx : cx + 5, y: cy + (last ? 20 : 17), "text-anchor": last ? "middle" : "start", class: "strong" }, p.label);
      const between = p.high > p.low ? `${number(p.low)} to ${number(p.high)}` : "";
      const rest = [p.label && `${p.label} of the ideal`, p.usual === undefined ? between : `usually ${number(p.usual)}${between && ` (${between})`}`];
      stops.push({ x: cx, y: cy, say: () => ({ head: `${line.name}, ${number(p.x)} ${data.x}: ${number(p.y)} ${data.unit || ""}`, rest: rest.filter(Boolean).map((text) => `, ${text}`).join("") }) });
    }
  }

  /* Lines differ in the shape of their points, not in colour alone. */
  function mark(place, x, y) {
    const shapes = [
      `M${x - 4} ${y}a4 4 0 1 0 8 0a4 4 0 1 0-8 0z`,
      `M${x - 3.5} ${y - 3.5}h7v7h-7z`,
      `M${x} ${y - 4.5}l4.5 8h-9z`,
      `M${x} ${y - 5}l5 5l-5 5l-5-5z`,
      `M${x} ${y + 4.5}l4.5-8h-9z`,
      `M${x - 4.5} ${y - 1.5}h3v-3h3v3h3v3h-3v3h-3v-3h-3z`,
    ];
    return shapes[place % shapes.length];
  }

  function linesTable(data) {
    const unit = data.unit ? ` (${data.unit})` : "";
    const columns = data.lines.flatMap((line) => {
      const some = (key) => line.points.some((p) => p[key] !== undefined && p[key] !== "");
      const own = [[line.name + unit, (p) => number(p.y)]];
      if (some("label")) own.push([`${line.name}, share of the ideal`, (p) => p.label || "–"]);
      if (some("low")) own.push([`${line.name}, lowest`, (p) => number(p.low)], [`${line.name}, highest`, (p) => number(p.high)]);
      return own.map(([name, text]) => ({ name, text, line }));
    });
    const xs = [...new Set(data.lines.flatMap((line) => line.points.map((p) => p.x)))].sort((a, b) => a - b);
    const rows = xs.map((value) => [number(value), ...columns.map(({ text, line }) => {
      const at = line.points.find((p) => p.x === value);
      return at ? text(at) : "–";
    })]);
    return { head: [data.x, ...columns.map((column) => column.name)], rows };
  }

  /* A grid of cells: rows x columns of deviations (fractions) */
  function heat(host, data) {
    const rows = data.rows.length, columns = data.columns.length;
    const row = rows > 40 ? 13 : 20, top = 8;
    const { root, width, add } = canvas(host, top + rows * row + 62);
    const names = Math.min(Math.max(...data.rows.map((name) => textWidth(name))), width * 0.3);
    const left = names + 12, right = width - 62;
    const step = Math.min((right - left) / columns, 26);
    const x = (c) => left + c * step, y = (r) => top + r * row;
    const marked = new Set(data.marked);
    const reach = data.reach || 0.1;
    const bin = (value) => Math.max(-4, Math.min(4, Math.round((value / reach) * 4)));
    data.rows.forEach((name, r) => {
      const fits = Math.floor(names / 6.7);
      add("text", { x: left - 8, y: y(r) + row / 2 + 4, "text-anchor": "end", class: marked.has(name) ? "marked" : "" }, name.length > fits + 1 ? `…${name.slice(-fits)}` : name);
      data.cells[r].forEach((value, c) => {
        if (value === null) return;
        add("rect", { x: x(c).toFixed(1), y: y(r), width: Math.max(step - 1.5, 1).toFixed(1), height: row - 2, rx: 1.5, class: `h${bin(value)}` });
      });
      add("text", { x: x(columns) + 6, y: y(r) + row / 2 + 4, class: marked.has(name) ? "marked" : "" }, data.latest[r]);
    });
    const apart = Math.max(1, Math.ceil(56 / step));
    for (let c = columns - 1; c >= 0; c -= apart) {
      const day = new Date(`${data.columns[c]}T00:00Z`);
      if (x(c) < left - 8) break;
      add("text", { x: x(c) + step / 2, y: y(rows) + 14, "text-anchor": "middle" }, `${day.getUTCDate()} ${MONTHS[day.getUTCMonth()]}`);
    }
    legend(add, left, y(rows) + 34, reach, width);
    const cursor = add("g", { visibility: "hidden" });
    cursor.append(svg("rect", { width: step - 0.5, height: row - 1, class: "cell-cursor", rx: 2 }));
    const say = (r, c) => ({ head: `${data.rows[r]}, ${dateText(new Date(`${data.columns[c]}T00:00Z`))}: ${data.cells[r][c] === null ? "not measured" : percent(data.cells[r][c])}`, rest: data.cells[r][c] === null ? "" : " against the median of all nodes" });
    return cells(root, cursor, { rows, columns, x, y, step, row, say, table: () => heatTable(data) });
  }

  function legend(add, beside, top, reach, width) {
    const words = ["slower", "faster"];
    const from = `${words[0]} ${percent(-reach, 0)}`, to = `${percent(reach, 0)} ${words[1]}`;
    const long = textWidth(from) + 14 + 9 * 16 + 6 + textWidth(to);
    const left = beside + long > width ? 0 : beside;
    add("text", { x: left, y: top + 11 }, from);
    const at = left + textWidth(from) + 14;
    for (let b = -4; b <= 4; b += 1) add("rect", { x: at + (b + 4) * 16, y: top, width: 15, height: 13, rx: 1.5, class: `h${b}` });
    add("text", { x: at + 9 * 16 + 6, y: top + 11 }, to);
  }

  function heatTable(data) {
    const nights = data.columns.map((_, c) => c).reverse();
    return {
      head: ["Node", ...nights.map((c) => data.columns[c])],
      rows: data.rows.map((name, r) => [name, ...nights.map((c) => (data.cells[r][c] === null ? "–" : percent(data.cells[r][c])))]),
    };
  }

  /* Going through a figure: by index along one axis, or through cells */
  function follow(root, cursor, stops, rest) {
    let at = stops.length - 1;
    const show = (index) => {
      at = Math.max(0, Math.min(stops.length - 1, index));
      const stop = stops[at];
      cursor.setAttribute("visibility", "visible");
      cursor.firstChild.setAttribute("x1", stop.x);
      cursor.firstChild.setAttribute("x2", stop.x);
      cursor.lastChild.setAttribute("cx", stop.x);
      cursor.lastChild.setAttribute("cy", stop.y);
      return stop.say();
    };
    const near = (px, py) => stops.reduce((best, stop, i) => {
      const apart = Math.hypot(stop.x - px, (stop.y - py) * 0.05);
      return apart < best[0] ? [apart, i] : best;
    }, [Infinity, at])[1];
    const keys = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -7, PageUp: 7, Home: -Infinity, End: Infinity };
    return {
      ...rest, count: stops.length,
      get position() { return at; },
      point: (px, py) => show(near(px, py)),
      key: (name) => (name in keys ? show(at + keys[name]) : null),
      show: () => show(at),
      hide: () => cursor.setAttribute("visibility", "hidden"),
    };
  }

  function cells(root, cursor, { rows, columns, x, y, step, row, say, table }) {
    let r = 0, c = columns - 1;
    const clamp = (value, most) => Math.max(0, Math.min(most - 1, value));
    const show = (toRow, toColumn) => {
      r = clamp(toRow, rows);
      c = clamp(toColumn, columns);
      cursor.setAttribute("visibility", "visible");
      cursor.firstChild.setAttribute("x", x(c) - 0.5);
      cursor.firstChild.setAttribute("y", y(r) - 0.5);
      return say(r, c);
    };
    const keys = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity], PageUp: [-10, 0], PageDown: [10, 0] };
    return {
      words: "cells", table, count: rows * columns,
      get position() { return r * columns + c; },
      point: (px, py) => show(Math.floor((py - y(0)) / row), Math.floor((px - x(0)) / step)),
      key: (name) => (name in keys ? show(r + keys[name][0], c + keys[name][1]) : null),
      show: () => show(r, c),
      hide: () => cursor.setAttribute("visibility", "hidden"),
    };
  }

  const kinds = { time, lines, heat };
  return { draw: (host, kind, values, view = {}) => kinds[kind](host, values, view) };
})();
