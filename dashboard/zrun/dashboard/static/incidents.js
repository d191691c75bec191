// Incidents: the cause before its consequences, the reasons, the cost; evidence is fetched when one is opened.

import { ask } from "./api.js";
import { el, onChange } from "./dom.js";
import { clock, plain, ranks, size, span } from "./words.js";

export function incidentList(job) {
  const box = el("div", { class: "incidents" });
  const cards = new Map();
  const draw = onChange((incidents) => {
    if (!incidents.length) {
      box.replaceChildren(el("p", { class: "empty" }, "Nothing has happened."));
      return;
    }
    const wanted = [...incidents].reverse().map((incident) => {
      if (!cards.has(incident.id)) cards.set(incident.id, card(job, incident.id));
      const one = cards.get(incident.id);
      one.update(incident);
      return one.node;
    });
    if (wanted.length !== box.children.length || wanted.some((n, i) => n !== box.children[i])) box.replaceChildren(...wanted);
  });
  return {
    node: box,
    update: (status) => draw(status.incidents),
    open(id) {
      const one = cards.get(id);
      if (!one) return;
      one.node.open = true;
      one.node.scrollIntoView({ block: "nearest" });
    },
  };
}

function card(job, id) {
  const head = el("summary");
  const facts = el("div");
  const evidence = el("div", { class: "evidence" });
  const node = el("details", { class: "incident" }, head, facts, evidence);
  let fetchedFor = "";
  async function fetchEvidence() {
    const key = `${node.dataset.version}`;
    if (!node.open || fetchedFor === key) return;
    fetchedFor = key;
    const found = await ask(`/api/jobs/${encodeURIComponent(job)}/incidents/${id}`);
    if (found) evidence.replaceChildren(...texts(found));
  }
  node.addEventListener("toggle", fetchEvidence);
  return {
    node,
    update: onChange((incident) => {
      node.dataset.version = `${incident.resolution ?? ""}${incident.because.length}${incident.open}`;
      node.classList.toggle("open-case", incident.open);
      head.replaceChildren(
        el("span", { class: "badge bad" }, incident.suspicion ? `${incident.class}?` : incident.class),
        el("span", { class: "headline" }, plain(incident.headline)),
        el("span", { class: "dim when" }, clock(incident.at)));
      facts.replaceChildren(...body(incident));
      fetchEvidence();
    }),
  };
}

function body(incident) {
  const rows = [
    ["exception", incident.exception],
    ["where", incident.where],
    ["step", incident.step],
    ["batch", incident.batch],
    ["in", incident.collective],
    ["code", incident.exit_code],
    ["signal", incident.signal],
    ["peak memory", incident.peak_rss_bytes ? size(incident.peak_rss_bytes) : null],
    [(incident.nodes ?? []).length > 1 ? "nodes" : "node", (incident.nodes ?? []).length > 1 ? incident.nodes.join(", ") : incident.node],
    ["attempt", incident.attempt],
    ["followed", incident.followed.length ? ranks(incident.followed) : null],
    ["seen after", incident.detected_s === null ? null : span(incident.detected_s)],
    ["back after", incident.recovered_s === null ? null : span(incident.recovered_s)],
    ["steps lost", incident.steps_lost],
    ["then", incident.decision || null],
    ["end", incident.resolution],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  const frames = incident.frames ?? [];
  return [
    ...(frames.length ? [el("pre", { class: "frames", tabindex: 0 }, plain(frames.join("\n")))] : []),
    el("ul", { class: "because" }, incident.because.map((reason) => el("li", {}, plain(reason)))),
    el("dl", {}, rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, plain(value))))),
  ];
}

/** Equal texts once, with the ranks that have them; numbers such as process ids do not count. */
function equal(failures, textOf) {
  const groups = new Map();
  for (const failure of failures) {
    const text = textOf(failure);
    if (!text || failure.rank < 0) continue;
    const key = text.replace(/0x[0-9a-f]+|\d+/gi, "#");
    if (!groups.has(key)) groups.set(key, { ranks: [], text });
    groups.get(key).ranks.push(failure.rank);
  }
  return [...groups.values()];
}

function texts(found) {
  const parts = [];
  const add = (title, text) => {
    if (text) parts.push(el("h4", {}, title), el("pre", { tabindex: 0 }, plain(text.trimEnd())));
  };
  add("Roll call", found.roll_call);
  if (!(found.failures ?? []).length) {
    add("Traceback", found.traceback);
    add("Last lines", Array.isArray(found.last_lines) ? found.last_lines.join("\n") : found.last_lines);
  }
  for (const group of equal(found.failures ?? [], (f) => f.traceback)) add(`Traceback of ${ranks(group.ranks)}`, group.text);
  for (const one of found.failures ?? []) {
    if (one.rank >= 0) add(`Last lines of rank ${one.rank}`, (one.last_lines ?? []).join("\n"));
  }
  for (const group of found.stack_groups ?? []) add(`Stack of ${ranks(group.ranks)}`, group.stack);
  return parts;
}
