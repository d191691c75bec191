// Making and changing elements. Text goes in as text nodes only, so nothing a job says can become markup.

const SVG = "http://www.w3.org/2000/svg";

/** el("td", { class: "num", title: "…", onclick: f }, "text", node, null) */
export function el(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

/** Set the text only if it differs: a selection inside survives. */
export function put(node, text) {
  const wanted = text === null || text === undefined ? "" : String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/** A function that calls draw(value) only when the value, as JSON, has changed. */
export function onChange(draw) {
  let before;
  return (value, ...more) => {
    const now = JSON.stringify(value);
    if (now === before) return;
    before = now;
    draw(value, ...more);
  };
}

export function section(title, ...children) {
  return el("section", {}, el("h2", {}, title), ...children);
}
