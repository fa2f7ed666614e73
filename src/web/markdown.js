/* A model's markdown as harmless HTML: marked reads it (HTML in it stays text), DOMPurify lets
 * through what only formats. No pictures, styles, names or forms: an answer can't load anything,
 * look like the page, or act. */
import {h, t} from "./base.js";
import {Marked} from "./marked.js";
import DOMPurify from "./purify.js";

const escapes = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"};
const escaped = (text) => text.replace(/[&<>"]/g, (c) => escapes[c]);

const marked = new Marked({gfm: true, breaks: true, async: false, renderer: {
  html: ({text}) => escaped(text),
  image: ({text, href}) => escaped(`${text} (${href})`),
}});
const TAGS = ["a", "b", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "li",
  "ol", "p", "pre", "s", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul", "details", "summary"];
const CONFIG = {ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ["href", "align", "start", "open"], ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false, ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i, RETURN_DOM_FRAGMENT: true};

DOMPurify.addHook("afterSanitizeAttributes", (el) => {
  if (el.tagName !== "A") return;
  el.setAttribute("rel", "noopener noreferrer nofollow");
  el.setAttribute("target", "_blank");
});

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { /* no https: the old way, which needs a selection */
    const area = h("textarea", {class: "unseen"});
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = t("chat.copied");
  setTimeout(() => { button.textContent = t("chat.copy"); }, 1500);
}

/* Headings of an answer lie below the page's own. */
function lowerHeadings(root) {
  for (const el of root.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    const lower = h(`h${Math.min(6, Number(el.tagName[1]) + 2)}`);
    lower.append(...el.childNodes);
    el.replaceWith(lower);
  }
}

function addCopyButtons(root) {
  for (const pre of root.querySelectorAll("pre")) {
    const button = h("button", {class: "small copy", type: "button",
      onclick: () => copy(pre.textContent, button)}, t("chat.copy"));
    const box = h("div", {class: "code"});
    pre.replaceWith(box);
    pre.tabIndex = 0;
    box.append(pre, button);
  }
  for (const table of root.querySelectorAll("table")) {
    const box = h("div", {class: "scroll", tabindex: "0"});
    table.replaceWith(box);
    box.append(table);
  }
}

/* Replaces what el holds by the formatted text. final: it will not grow, so give it its buttons. */
export function renderMarkdown(el, text, final) {
  const fragment = DOMPurify.sanitize(marked.parse(text), CONFIG);
  lowerHeadings(fragment);
  if (final) addCopyButtons(fragment);
  el.replaceChildren(fragment);
}
