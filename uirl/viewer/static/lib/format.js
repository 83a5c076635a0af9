// Numbers and times for people. What is not known is a dash, never a zero.

export const NONE = "–";

/** A number in about four digits: 0.5139, 12.35, 1 204, 3.2e-7. */
export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (size < 1e-3 || size >= 1e9) return minus(value.toExponential(Math.max(digits - 2, 0)));
  if (Number.isInteger(value)) return minus(grouped(value));
  if (size >= 10 ** digits) return minus(grouped(Math.round(value)));
  return minus(String(Number(value.toPrecision(digits))));
}

function grouped(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, "\u2009");
}

function minus(text) {
  return text.replace(/^-/, "−").replace("e-", "e−");
}

/** A share as a percentage. What is not all is never "100 %", and what is something never "0 %". */
export function percent(value) {
  if (value === null || value === undefined) return NONE;
  const [whole, fine] = [(100 * value).toFixed(0), (100 * value).toFixed(1)];
  if (value > 0 && fine === "0.0") return "< 0.1 %";
  if (value < 1 && fine === "100.0") return "> 99.9 %";
  return `${(value > 0 && value < 0.1) || (value < 1 && whole === "100") ? fine : whole} %`;
}

/** Seconds since 1970 (or an ISO date) as a local date and time. */
export function date(seconds) {
  const when = moment(seconds);
  return when === null ? NONE : when.toLocaleString("sv-SE", { dateStyle: "short", timeStyle: "medium" });
}

function moment(value) {
  if (value === null || value === undefined) return null;
  const when = new Date(typeof value === "number" ? value * 1000 : value);
  return Number.isNaN(when.getTime()) ? null : when;
}

/** How long ago something was: "12 s ago". */
export function ago(seconds, now = Date.now()) {
  const when = moment(seconds);
  return when === null ? NONE : `${duration(Math.max(now - when.getTime(), 0) / 1000)} ago`;
}

/** Seconds in the two largest units: "2 h 5 min". */
export function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

/** An id in few characters, enough to tell neighbours apart: the beginning of a random one, the end of a long name. */
export function short(id) {
  const text = String(id);
  if (/^[0-9a-f]{32}$/.test(text)) return text.slice(0, 8);
  return text.length > 22 ? `…${text.slice(-21)}` : text;
}

/** Anything as text: a text as it is, the rest as indented JSON. */
export function plain(value) {
  return typeof value === "string" ? value : (JSON.stringify(value, null, 1) ?? String(value));
}

// what cannot be seen, and what turns round what stands beside it; line ends and tabs are text. As in viewer/export.py
const NEVER =
  "\\0-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b\\u200e\\u200f" +
  "\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff0-\\ufffb\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}" +
  "\\u{e0000}-\\u{e0fff}";
const BETWEEN = "[^\\0-\\u02af\\u2000-\\u206f\\s]";
const UNSEEN = new RegExp(
  `[${NEVER}]|[\\u200c\\u200d](?!${BETWEEN})|(?<!${BETWEEN})[\\u200c\\u200d]` +
    "|(?<![^\\s\\ufe00-\\ufe0f])[\\ufe00-\\ufe0f]",
  "gu",
);

/** A text with its characters that cannot be seen as their codes: "\\u202e". */
export function visible(text) {
  return text.replace(UNSEEN, (one) => {
    const code = one.codePointAt(0).toString(16);
    return one === "\r" ? "␍" : code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
  });
}

/** The address where it is one that a click may follow (http, https); else null. */
export function safeLink(address) {
  try {
    return ["http:", "https:"].includes(new URL(address).protocol) ? address : null;
  } catch {
    return null;
  }
}
