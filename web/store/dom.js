// Elements without markup: text never becomes HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `on...` attributes are listeners; null, false and undefined leave one out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  setAll(element, attributes);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** A quiet button; `more`: its other attributes. */
export const plain = (text, onclick, more = {}) =>
  h("button", { type: "button", class: "plain", onclick, ...more }, text);

function setAll(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
}

/** Sets an attribute, or removes it for null and false. */
export function set(element, name, value) {
  if (value === null || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Sets the text only where it differs: a live region speaks each change once. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const ICONS = {
  check: "M5 12.5l4.5 4.5L19 7.5",
  again: "M19 5v5h-5M18.4 14a7 7 0 1 1-1.2-6.6L19 10",
  wait: "M12 7v5l3 2M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16",
  cross: "M7 7l10 10M17 7L7 17",
  lock: "M7 11h10v8H7zM9 11V8a3 3 0 0 1 6 0v3",
  bag: "M6 8h12l1 12H5zM9 8a3 3 0 0 1 6 0",
};

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  setAll(svg, { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" });
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A modal dialog that closes with Escape, and gives the focus back. */
export function dialog(title, ...children) {
  const heading = h("h2", { id: "dialog-title" }, title);
  const box = h("dialog", { "aria-labelledby": "dialog-title" }, heading, ...children);
  const before = document.activeElement;
  box.addEventListener("close", () => {
    box.remove();
    before?.focus?.();
  });
  document.body.append(box);
  box.showModal();
  return box;
}
