// The tail of the log: of one rank or of all, of any attempt, followed while the page is looked at.

import { ask } from "./api.js";
import { el } from "./dom.js";
import { clock, plain } from "./words.js";

const TAIL = 300;
const EVERY_MS = 1500;

export function logPane(job) {
  const rank = el("select", { "aria-label": "rank", onchange: refresh }, el("option", { value: "" }, "all ranks"));
  const attempt = el("select", { "aria-label": "attempt", onchange: () => { rank.value = ""; refresh(); } });
  const level = el("select", { "aria-label": "level", onchange: refresh },
    [["", "every line"], ["warning", "warnings and worse"], ["error", "errors"]].map(([value, text]) => el("option", { value }, text)));
  const follow = el("input", { type: "checkbox", checked: true, id: "follow" });
  const lines = el("ol", { class: "lines", tabindex: 0, "aria-label": "log lines" });
  const node = el("div", { class: "log" },
    el("div", { class: "row" }, attempt, rank, level, el("label", { class: "dim" }, follow, " follow")), lines);
  let newest = "";
  let busy = false;
  let over = false;

  async function refresh() {
    if (busy) return;
    busy = true;
    try {
      const query = new URLSearchParams({ tail: String(TAIL) });
      for (const [name, box] of [["attempt", attempt], ["rank", rank], ["level", level]]) if (box.value) query.set(name, box.value);
      const found = await ask(`/api/jobs/${encodeURIComponent(job)}/logs?${query}`);
      if (found) show(found);
    } finally {
      busy = false;
    }
  }

  function show(found) {
    options(rank, [["", "all ranks"], ...found.ranks.map((r) => [String(r), `rank ${r}`])]);
    const key = `${found.attempt}/${rank.value}/${level.value}/${found.lines.length}/${JSON.stringify(found.lines.at(-1) ?? "")}`;
    if (key === newest) return;
    newest = key;
    const atEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40;
    lines.replaceChildren(...found.lines.map(lineOf));
    if (!found.lines.length) lines.append(el("li", { class: "dim" }, "No lines."));
    if (atEnd || follow.checked) lines.scrollTop = lines.scrollHeight;
  }

  function lineOf(line) {
    const kind = ["error", "critical"].includes(line.level) ? "bad" : line.level === "warning" ? "warn" : "";
    const place = `${line.rank}${line.step ? ` · ${line.step}` : ""}`;
    return el("li", { class: kind, title: `${line.ts} rank ${line.rank} ${line.stream} step ${line.step ?? "–"} ${line.batch ?? ""}` },
      el("time", {}, clock(line.ts)), el("span", { class: "from" }, place), el("span", { class: "msg" }, plain(line.msg)));
  }

  const timer = setInterval(() => {
    if (follow.checked && !over && !document.hidden && node.isConnected) refresh();
  }, EVERY_MS);

  return {
    node,
    update(status) {
      const known = status.attempts.map((a) => [String(a.attempt), `attempt ${a.attempt}`]).reverse();
      const before = attempt.options.length;
      options(attempt, [["", "newest attempt"], ...known]);
      if (!before || before !== attempt.options.length) refresh();
    },
    choose(wanted) {
      options(rank, [...rank.options].map((o) => [o.value, o.text]).concat([[String(wanted), `rank ${wanted}`]]));
      rank.value = String(wanted);
      node.scrollIntoView({ block: "nearest" });
      refresh();
    },
    close() {
      over = true;
      clearInterval(timer);
    },
  };
}

/** Give a select these options, keeping what is chosen. */
function options(select, wanted) {
  const unique = [...new Map(wanted).entries()];
  const now = [...select.options].map((o) => o.value).join();
  if (now === unique.map(([value]) => value).join()) return;
  const chosen = select.value;
  select.replaceChildren(...unique.map(([value, text]) => el("option", { value }, text)));
  select.value = unique.some(([value]) => value === chosen) ? chosen : "";
}
