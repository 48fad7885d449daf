// Language and formats. Problems are told by their code, never by the server's English detail.

import en from "./en.js";
import zh from "./zh.js";
import { read, write } from "./records.js";

const LANGUAGES = { en: { words: en, tag: "en" }, zh: { words: zh, tag: "zh-Hans" } };

function choose() {
  const asked = new URLSearchParams(location.search).get("lang");
  const wanted = [asked, read("fg1:lang"), ...navigator.languages].filter(Boolean);
  const known = wanted.map((tag) => tag.slice(0, 2).toLowerCase());
  return known.find((tag) => tag in LANGUAGES) ?? "en";
}

export const language = choose();
const { words, tag } = LANGUAGES[language];
document.documentElement.lang = tag;

export const otherLanguage = language === "en" ? "zh" : "en";
export const keepLanguage = (chosen) => write("fg1:lang", chosen);

/** The text of a key with its {placeholders} filled. */
export function t(key, values = {}) {
  return words[key].replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

export const has = (key) => key in words;

const number = new Intl.NumberFormat(tag);
export const count = (value) => number.format(value);

/** Digits behind the point where they are not two (ISO 4217); those that Intl shows differ. */
const MINOR_DIGITS = {
  0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
  3: "BHD IQD JOD KWD LYD OMR TND",
  4: "CLF UYW",
};

function minorDigits(currency) {
  const found = Object.entries(MINOR_DIGITS).find(([, codes]) => codes.includes(currency));
  return found ? Number(found[0]) : 2;
}

const formats = new Map();
/** Money from the currency's smallest unit. */
export function money(amount, currency) {
  const digits = minorDigits(currency);
  if (!formats.has(currency)) {
    const exact = { minimumFractionDigits: digits, maximumFractionDigits: digits };
    formats.set(currency, new Intl.NumberFormat(tag, { style: "currency", currency, ...exact }));
  }
  return formats.get(currency).format(amount / 10 ** digits);
}

const SEASON_MS = 120 * 86400000;
const minute = { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" };
const day = new Intl.DateTimeFormat(tag, { weekday: "short", ...minute });
const dated = new Intl.DateTimeFormat(tag, { year: "numeric", ...minute });
/** A time; one of another season with its year. */
export function when(time) {
  const date = new Date(time);
  return (Math.abs(date - Date.now()) < SEASON_MS ? day : dated).format(date);
}

const two = (value) => String(value).padStart(2, "0");

/** A span of time as a clock shows it, rounded up to whole seconds. */
export function clock(ms) {
  const seconds = Math.max(0, Math.ceil(ms / 1000));
  const [days, hours] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24];
  const rest = `${two(Math.floor(seconds / 60) % 60)}:${two(seconds % 60)}`;
  if (days > 0) return t("days", { days, rest: `${two(hours)}:${rest}` });
  return hours > 0 ? `${two(hours)}:${rest}` : rest;
}
