// Numbers and states in words. Pure.

export const FINAL = new Set(["SUCCEEDED", "FAILED", "STOPPED", "PREEMPTED"]);

const TONES = {
  RUNNING: "good", SUCCEEDED: "good", FAILED: "bad", RECOVERING: "warn", SUSPENDED: "warn", PREEMPTED: "warn",
  PENDING: "calm", SETUP: "calm", STARTING: "calm", STOPPING: "calm", STOPPED: "calm",
};

export function tone(state) {
  return TONES[state] ?? "calm";
}

/** 0.0512 -> "51 ms", 75 -> "1m 15s" */
export function span(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 59.5) return `${Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const [d, h, m, s] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60, whole % 60];
  if (d) return `${d}d ${h}h`;
  if (h) return `${h}h ${m}m`;
  return `${m}m ${s}s`;
}

export function size(bytes) {
  let value = bytes;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (value < 1024 || unit === "TiB") return `${unit === "B" ? value : value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return "";
}

export function share(fraction) {
  return fraction === null || fraction === undefined ? "–" : `${(100 * fraction).toFixed(1)} %`;
}

/** [0,1,2,5] -> "ranks 0-2, 5" */
export function ranks(numbers) {
  const runs = [];
  for (const n of [...numbers].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && last[1] === n - 1) last[1] = n;
    else runs.push([n, n]);
  }
  const text = runs.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(", ");
  return `${numbers.length === 1 ? "rank" : "ranks"} ${text}`;
}

/** Local time of day of an RFC 3339 text. */
export function clock(text) {
  const at = new Date(text ?? NaN);
  return Number.isNaN(at.getTime()) ? "" : at.toLocaleTimeString([], { hour12: false });
}

export function moment(text) {
  const at = new Date(text ?? NaN);
  return Number.isNaN(at.getTime()) ? "" : at.toLocaleString([], { dateStyle: "medium", timeStyle: "medium", hour12: false });
}

// eslint-disable-next-line no-control-regex
const ESCAPES = /\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]/g;

/** A log line without terminal colours and other control characters. */
export function plain(text) {
  return String(text ?? "").replace(ESCAPES, "");
}

/** What the numbers the script reported look like. */
export function number(value) {
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? value.toLocaleString() : value.toPrecision(4).replace(/\.?0+$/, "");
}
