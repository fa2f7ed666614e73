/* What both pages share: words, elements, numbers, language, look. No markup is ever made of text. */
import {languages, fill} from "./text.js";

/* ---- What the browser keeps; a browser that keeps nothing is fine, too ---- */

export const kept = {
  get(name, store = localStorage) {
    try { return store.getItem(`gamasot.${name}`); } catch { return null; }
  },
  set(name, value, store = localStorage) {
    try {
      if (value === null) store.removeItem(`gamasot.${name}`);
      else store.setItem(`gamasot.${name}`, value);
      return true;
    } catch { return false; }
  },
};

/* ---- Language and look ---- */

function preferredLanguage() {
  const chosen = kept.get("language");
  if (languages[chosen]) return chosen;
  for (const tag of navigator.languages ?? [])
    if (languages[tag.slice(0, 2)]) return tag.slice(0, 2);
  return "en";
}

let language = preferredLanguage();
export const lang = () => language;

export function t(key, values) {
  return fill(languages[language].words[key] ?? key, values);
}

export const has = (key) => key in languages[language].words;

const pageEvents = new EventTarget();
/* what: "language", "theme" */
export const onChange = (what, fn) => pageEvents.addEventListener(what, fn);

function setLanguage(code) {
  language = code;
  kept.set("language", code);
  translatePage();
  pageEvents.dispatchEvent(new Event("language"));
}

function applyTheme() {
  const theme = kept.get("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  pageEvents.dispatchEvent(new Event("theme"));
}

/* Elements say by data-t which words are theirs, by data-t-ATTRIBUTE which are an attribute's. */
export function translatePage(root = document) {
  document.documentElement.lang = language;
  for (const el of root.querySelectorAll("[data-t]")) el.textContent = t(el.dataset.t);
  for (const attribute of ["aria-label", "placeholder", "title"])
    for (const el of root.querySelectorAll(`[data-t-${attribute}]`))
      el.setAttribute(attribute, t(el.getAttribute(`data-t-${attribute}`)));
}

/* The two choices in the head of each page. */
export function lookControls(into) {
  const languageSelect = h("select", {id: "language", onchange: (e) => setLanguage(e.target.value)},
    ...Object.entries(languages).map(([code, l]) => h("option", {value: code, lang: code}, l.name)));
  languageSelect.value = language;
  const themeSelect = h("select", {id: "theme", onchange: (e) => {
    kept.set("theme", e.target.value || null);
    applyTheme();
  }}, ...["", "light", "dark"].map((v) => h("option", {value: v, "data-t": `theme.${v || "auto"}`})));
  themeSelect.value = kept.get("theme") ?? "";
  into.append(
    h("label", {}, h("span", {class: "unseen", "data-t": "language"}), languageSelect),
    h("label", {}, h("span", {class: "unseen", "data-t": "theme"}), themeSelect));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change",
    () => pageEvents.dispatchEvent(new Event("theme")));
  applyTheme();
}

/* ---- Elements ---- */

/* h("button", {class: "x", onclick: fn}, "text", element): text stays text. */
export function h(tag, attributes = {}, ...children) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) el.addEventListener(name.slice(2), value);
    else el.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat())
    if (child !== undefined && child !== null && child !== false) el.append(child);
  return el;
}

export const $ = (selector, root = document) => root.querySelector(selector);

/* Changes the text only when it differs: selections and screen readers are left in peace. */
export function setText(el, text) {
  if (el.textContent !== text) el.textContent = text;
}

/* A list of elements kept by key: rows are reused, so that focus stays where it is. */
export function keyed(parent, items, keyOf, make, update) {
  const old = new Map([...parent.children].map((el) => [el.dataset.key, el]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let el = old.get(key);
    old.delete(key);
    if (!el) {
      el = make(item);
      el.dataset.key = key;
    }
    if (el !== at) parent.insertBefore(el, at);
    else at = at.nextElementSibling;
    update?.(el, item);
  }
  for (const el of old.values()) el.remove();
}

export function table(caption, heads, rows) {
  return h("table", {},
    h("caption", {class: "unseen"}, caption),
    h("thead", {}, h("tr", {}, ...heads.map((x) => h("th", {scope: "col"}, x)))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((x, i) =>
      (i === 0 ? h("th", {scope: "row"}, x) : h("td", {}, x)))))));
}

/* ---- Numbers ---- */

export function num(x, digits = 0) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  return new Intl.NumberFormat(language, {maximumFractionDigits: digits}).format(x);
}

/* Digits enough to tell one from another, no more. */
export function brief(x) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  return num(x, Math.abs(x) >= 100 ? 0 : Math.abs(x) >= 10 ? 1 : 2);
}

export const percent = (x, digits = 0) =>
  (Number.isFinite(x) ? `${num(x * 100, digits)} %` : "–");

export function time(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  if (ms < 100) return t("unit.ms", {n: num(ms, ms < 10 ? 1 : 0)});
  if (ms < 1000) return t("unit.s", {n: num(ms / 1000, 2)});
  if (ms < 90_000) return t("unit.s", {n: num(ms / 1000, ms < 10_000 ? 1 : 0)});
  if (ms < 5_400_000) return t("unit.min", {n: num(ms / 60_000, 0)});
  return t("unit.h", {n: num(ms / 3_600_000, 1)});
}

export const bytes = (n) => (n >= 1e9 ? `${num(n / 1e9, 1)} GB` : `${num(n / 1e6, 0)} MB`);

export const className = (c) => (has(`class.${c}`) ? t(`class.${c}`) : String(c));

export const isDark = () => (kept.get("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

/* ---- Colours for canvases, as the style sheets have them ---- */

export function colour(variable) {
  const probe = $("#probe") ?? document.body.appendChild(h("span", {id: "probe", hidden: true}));
  probe.style.color = `var(${variable})`;
  return getComputedStyle(probe).color;
}

/* A canvas in device pixels; returns its 2d context scaled to CSS pixels, and the size in them. */
export function fitCanvas(canvas) {
  const {clientWidth: w, clientHeight: hgt} = canvas;
  const scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(w * scale) || canvas.height !== Math.round(hgt * scale)) {
    canvas.width = Math.round(w * scale);
    canvas.height = Math.round(hgt * scale);
  }
  const g = canvas.getContext("2d");
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, w, hgt);
  return {g, w, h: hgt};
}

/* ---- Screen readers: one quiet voice ---- */

let lastSaid = 0, pending = null;
/* Says it, but never more often than every ten seconds; the last word counts. */
export function announce(text, urgent = false) {
  clearTimeout(pending);
  const say = () => {
    lastSaid = Date.now();
    setText($("#announcer"), text);
  };
  const wait = urgent ? 0 : Math.max(0, 10_000 - (Date.now() - lastSaid));
  if (wait === 0) say();
  else pending = setTimeout(say, wait);
}
