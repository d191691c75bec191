// One job: how it stands and why, what happened to it, where its ranks are, what they print.

import { el, onChange, put, section } from "./dom.js";
import { incidentList } from "./incidents.js";
import { logPane } from "./log.js";
import { rankTable } from "./ranks.js";
import { timeline } from "./timeline.js";
import { FINAL, moment, number, plain, ranks, share, size, span, tone } from "./words.js";

export function jobView(id) {
  const incidents = incidentList(id);
  const line = timeline((incident) => incidents.open(incident));
  const log = logPane(id);
  const table = rankTable((rank) => log.choose(rank));
  const title = el("h1");
  const badge = el("span", { class: "badge", role: "status" });
  const reason = el("p", { class: "reason" });
  const bar = el("progress", { max: 1, value: 0, "aria-label": "steps" });
  const facts = el("dl", { class: "facts" });
  const notes = el("ul", { class: "notes" });
  const attempts = el("tbody");
  const saved = el("div");
  const head = [["attempt", "num"], ["outcome", ""], ["steps", ""], ["from", ""], ["because of", ""], ["took", "num"], ["its ranks", ""]];
  const node = el("article", {},
    el("div", { class: "title" }, title, badge), reason, bar, facts, notes,
    section("Timeline", line.node),
    section("Incidents", incidents.node),
    section("Ranks", table.node),
    section("Log", log.node),
    section("Attempts", el("div", { class: "scroll" }, el("table", {},
      headOf(head), attempts))),
    section("Checkpoints", saved));

  const drawFacts = onChange((rows) => facts.replaceChildren(...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))));
  const drawNotes = onChange((texts) => notes.replaceChildren(...texts.map((text) => el("li", {}, plain(text)))));
  const drawAttempts = onChange((all) => attempts.replaceChildren(...[...all].reverse().map(attemptRow)));
  const drawSaved = onChange((all) => saved.replaceChildren(savedTable(all)));

  return {
    node,
    update(status) {
      put(title, status.name || status.job);
      put(badge, status.state);
      badge.className = `badge ${tone(status.state)}`;
      put(reason, plain(status.reason));
      bar.hidden = !status.total_steps;
      if (status.total_steps) {
        bar.max = status.total_steps;
        bar.value = Math.min(status.step, status.total_steps);
      }
      drawFacts(factsOf(status));
      drawNotes(notesOf(status));
      line.update(status);
      incidents.update(status);
      table.update(status);
      log.update(status);
      drawAttempts(status.attempts.map(({ duration_s, ...rest }) => ({ ...rest, took: span(duration_s) })));
      drawSaved(status.checkpoints);
    },
    close: () => log.close(),
  };
}

function factsOf(s) {
  const left = s.total_steps && s.step_s && !FINAL.has(s.state) ? (s.total_steps - s.step) * s.step_s : null;
  const budget = Object.entries(s.restarts.left).map(([name, n]) => `${name} ${n}`).join(", ");
  const rows = [
    ["job", s.job],
    ["step", s.total_steps ? `${number(s.step)} of ${number(s.total_steps)}` : number(s.step)],
    ["step time", s.step_s ? span(s.step_s) : "–"],
    left !== null ? ["to go", span(left)] : null,
    ["goodput", share(s.goodput)],
    ["attempt", String(s.attempt)],
    ["restarts", `${s.restarts.used}${budget && s.restarts.used ? ` (left: ${budget})` : ""}`],
    s.submitted ? ["handed in", moment(s.submitted)] : null,
    ...Object.entries(s.metrics ?? {}).slice(0, 8).map(([name, value]) => [name, number(value)]),
  ];
  return rows.filter(Boolean);
}

function notesOf(s) {
  const failed = (s.save_failures ?? []).map((f) => `save of step ${f.step} failed: ${f.error}`);
  const skipped = (s.quarantined ?? []).map((batch) => `batch ${batch} is skipped from now on`);
  const slow = (s.stragglers ?? []).map((one) => one.text);
  return [...failed, ...skipped, ...slow, ...(s.warnings ?? []), ...(s.left_behind ?? []).map((text) => `left behind: ${text}`)];
}

function attemptRow(a) {
  const steps = a.first_step !== null && a.last_step !== null ? `${a.first_step}–${a.last_step}` : "–";
  const from = a.resumed_from ? `step ${a.resumed_from.step} (${a.resumed_from.tier})` : "the beginning";
  return el("tr", {},
    el("th", { scope: "row", class: "num" }, String(a.attempt)),
    el("td", {}, a.outcome === "fault" && a.cause ? `fault (${a.cause})` : a.outcome ?? "running"),
    el("td", {}, steps), el("td", {}, from), el("td", { class: "long" }, plain(a.began_because ?? "")), el("td", { class: "num" }, a.took),
    el("td", { class: "long" }, el("ul", { class: "ends" }, endsOf(a))));
}

/** How the ranks of an attempt ended: the cause first, equal ends once. */
function endsOf(a) {
  const groups = new Map();
  for (const end of [...(a.ends ?? [])].sort((x, y) => Number(y.cause) - Number(x.cause) || x.rank - y.rank)) {
    const how = end.signal ?? (end.exit_code === null ? "" : `code ${end.exit_code}`);
    const said = [how, end.reason].filter((text, i, all) => text && (i || !all[1].includes(text))).join(", ");
    if (!groups.has(said)) groups.set(said, []);
    groups.get(said).push(end.rank);
  }
  return [...groups].map(([said, of]) => el("li", {}, plain(`${ranks(of)}: ${said}`)));
}

function savedTable(all) {
  if (!all.length) return el("p", { class: "empty" }, "None yet.");
  const head = [["step", "num"], ["tier", ""], ["state", ""], ["size", "num"], ["took", "num"]];
  return el("div", { class: "scroll" }, el("table", {},
    headOf(head),
    el("tbody", {}, [...all].reverse().slice(0, 8).map((c) => el("tr", {},
      el("th", { scope: "row", class: "num" }, String(c.step)), el("td", {}, c.tier), el("td", {}, c.state),
      el("td", { class: "num" }, size(c.bytes)), el("td", { class: "num" }, span(c.seconds)))))));
}

function headOf(columns) {
  return el("thead", {}, el("tr", {}, columns.map(([name, kind]) => el("th", { scope: "col", class: kind }, name))));
}
