// The table of ranks: cells are changed in place, so that a selection or a focus survives each update.

import { el, put } from "./dom.js";
import { span } from "./words.js";

const MOST = 256;
const HEAD = [["rank", "num"], ["node", ""], ["state", ""], ["phase", ""], ["step", "num"], ["batch", "wide"],
  ["age", "num"], ["in", "wide"]];

export function rankTable(onRank) {
  const body = el("tbody");
  const more = el("p", { class: "dim" });
  const rows = new Map();
  const table = el("table", {}, el("thead", {}, el("tr", {}, HEAD.map(([name, kind]) => el("th", { scope: "col", class: kind }, name)))), body);
  const node = el("div", {}, el("div", { class: "scroll" }, table), more);

  function rowOf(rank) {
    let row = rows.get(rank);
    if (!row) {
      const open = el("button", { type: "button", class: "cell", title: `log of rank ${rank}`, onclick: () => onRank(rank) }, String(rank));
      const cells = HEAD.map(([, kind], i) => (i ? el("td", { class: kind }) : el("th", { scope: "row", class: kind }, open)));
      row = { line: el("tr", {}, cells), cells };
      rows.set(rank, row);
    }
    return row;
  }

  return {
    node,
    update(status) {
      const all = status.nodes.flatMap((n) => n.ranks.map((r) => ({ ...r, node: n.node, nodeState: n.state })));
      all.sort((a, b) => a.rank - b.rank);
      const shown = pick(all, status.step);
      const suspects = new Set(status.incidents.filter((i) => i.open).map((i) => i.rank));
      const lines = shown.map((r) => {
        const { line, cells } = rowOf(r.rank);
        const state = r.nodeState === "ok" ? r.state : `node ${r.nodeState}`;
        [r.node, state, r.phase, r.step || "–", r.batch ?? "–", span(r.age_s), r.collective ?? (r.in_loader ? "loader" : "")]
          .forEach((text, i) => put(cells[i + 1], text));
        const bad = suspects.has(r.rank) || ["failed", "stopped"].includes(r.state) || r.nodeState !== "ok";
        line.className = bad ? "bad" : r.state === "alive" ? "" : "dim";
        return line;
      });
      if (lines.length !== body.children.length || lines.some((line, i) => body.children[i] !== line)) body.replaceChildren(...lines);
      put(more, shown.length < all.length ? `${all.length - shown.length} more ranks, alive and in step, are not listed.`
        : all.length ? "" : "No rank is running.");
    },
  };
}

/** Of very many ranks: those that differ from the rest first, then as many others as fit. */
function pick(all, step) {
  if (all.length <= MOST) return all;
  const odd = all.filter((r) => r.state !== "alive" || r.nodeState !== "ok" || Math.abs(r.step - step) > 1 || r.age_s > 5);
  const rest = all.filter((r) => !odd.includes(r));
  return [...odd, ...rest].slice(0, MOST).sort((a, b) => a.rank - b.rank);
}

