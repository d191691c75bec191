// Attempts as bars and incidents as marks over the time since the job was handed in.

import { el, onChange, svg } from "./dom.js";
import { FINAL, span } from "./words.js";

const ROW = 22;
const BAR = 12;
const LEFT = 26;
const FOOT = 20;
const MOST = 12;

export function timeline(onIncident) {
  const box = el("div", { class: "timeline" });
  const draw = onChange((shape) => box.replaceChildren(...paint(shape, onIncident)));
  let newest = null;
  new ResizeObserver(() => draw(shapeOf(newest, box))).observe(box);
  return {
    node: box,
    update(status) {
      newest = status;
      draw(shapeOf(status, box));
    },
  };
}

function shapeOf(status, box) {
  if (!status) return null;
  const zero = status.submitted_at_s ?? 0;
  const end = (status.ended_at_s ?? status.now_s ?? zero) - zero;
  const width = Math.max(box.clientWidth || 600, 240);
  const whole = Math.max(end, 1);
  const x = (at) => Math.round(10 * (LEFT + ((width - LEFT - 8) * Math.min(Math.max(at - zero, 0), whole)) / whole)) / 10;
  const shown = status.attempts.slice(-MOST);
  return {
    width,
    whole: Math.round(whole),
    hidden: status.attempts.length - shown.length,
    bars: shown.map((a) => ({
      number: a.attempt,
      from: x(a.ordered_at_s),
      first: a.started_at_s === null ? null : x(a.started_at_s),
      to: x(a.ended_at_s ?? zero + end),
      outcome: a.outcome ?? (FINAL.has(status.state) ? "stopped" : "open"),
      title: `attempt ${a.attempt}: ${a.outcome ?? "running"}, ${span(a.duration_s ?? end)}`,
      marks: status.incidents
        .filter((i) => i.attempt === a.attempt)
        .map((i) => ({ id: i.id, at: x(i.opened_at_s), open: i.open, title: `incident ${i.id}: ${i.headline}` })),
    })),
  };
}

function paint(shape, onIncident) {
  if (!shape || !shape.bars.length) return [el("p", { class: "empty" }, "No attempt yet.")];
  const height = shape.bars.length * ROW + FOOT;
  const rows = shape.bars.map((bar, row) => barOf(bar, row * ROW, onIncident));
  const base = height - FOOT;
  const ticks = ticksOf(shape.whole).map((at) => {
    const place = LEFT + ((shape.width - LEFT - 8) * at) / shape.whole;
    const anchor = at === 0 ? "start" : place > shape.width - 50 ? "end" : "middle";
    return svg("g", { class: "tick" },
      svg("line", { x1: place, x2: place, y1: 0, y2: base }),
      svg("text", { x: place, y: height - 5, "text-anchor": anchor }, at === 0 ? "0" : span(at)));
  });
  const picture = svg("svg", {
    width: shape.width, height, viewBox: `0 0 ${shape.width} ${height}`, role: "img",
    "aria-label": `${shape.bars.length} attempts over ${span(shape.whole)}`,
  }, ...ticks, ...rows);
  return shape.hidden ? [el("p", { class: "dim" }, `${shape.hidden} earlier attempts are not drawn.`), picture] : [picture];
}

function barOf(bar, top, onIncident) {
  const y = top + (ROW - BAR) / 2;
  const wide = (from, to) => Math.max(to - from, 2);
  const parts = [
    svg("text", { class: "row", x: 0, y: top + ROW / 2 + 4 }, `#${bar.number}`),
    svg("rect", { class: "bar starting", x: bar.from, y: y + 4, width: wide(bar.from, bar.first ?? bar.to), height: BAR - 8 },
      svg("title", {}, bar.title)),
  ];
  if (bar.first !== null) {
    parts.push(svg("rect", { class: `bar ${bar.outcome}`, x: bar.first, y, width: wide(bar.first, bar.to), height: BAR, rx: 2 },
      svg("title", {}, bar.title)));
  }
  for (const mark of bar.marks) {
    const [middle, r] = [top + ROW / 2, 6.5];
    const points = `${mark.at},${middle - r} ${mark.at + r},${middle} ${mark.at},${middle + r} ${mark.at - r},${middle}`;
    parts.push(svg("polygon", { class: mark.open ? "mark open" : "mark", points, onclick: () => onIncident(mark.id) },
      svg("title", {}, mark.title)));
  }
  return svg("g", {}, ...parts);
}

function ticksOf(whole) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 604800];
  const step = steps.find((s) => whole / s <= 6) ?? Math.ceil(whole / 6);
  const ticks = [];
  for (let at = 0; at <= whole; at += step) ticks.push(at);
  return ticks;
}
