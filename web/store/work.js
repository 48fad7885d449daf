// A proof of work, beside the page: looks for a number whose SHA-256 digest, after the prefix,
// begins with zero bits. SHA-256 of its own, because crypto.subtle needs HTTPS and is slower for
// texts this short.
//
// In: {prefix, bits}. Out: {tries} from time to time, then {answer}.

/** Tries between two messages. */
const STEP = 16384;

const fraction = (root) => ((root % 1) * 2 ** 32) | 0;
const primes = [];
for (let n = 2; primes.length < 64; n += 1) {
  if (primes.every((prime) => n % prime)) primes.push(n);
}
const START = primes.slice(0, 8).map((prime) => fraction(Math.sqrt(prime)));
const ROUNDS = Int32Array.from(primes, (prime) => fraction(Math.cbrt(prime)));
const words = new Int32Array(64);

const turn = (word, by) => (word >>> by) | (word << (32 - by));

/** The state after one block of 64 bytes that begins at `at`. */
function compress(state, view, at) {
  for (let i = 0; i < 16; i += 1) words[i] = view.getInt32(at + 4 * i);
  for (let i = 16; i < 64; i += 1) {
    const [x, y] = [words[i - 15], words[i - 2]];
    const small = turn(x, 7) ^ turn(x, 18) ^ (x >>> 3);
    const large = turn(y, 17) ^ turn(y, 19) ^ (y >>> 10);
    words[i] = words[i - 16] + small + words[i - 7] + large;
  }
  let [a, b, c, d, e, f, g, h] = state;
  for (let i = 0; i < 64; i += 1) {
    const one = h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + ROUNDS[i] +
      words[i];
    const two = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = (d + one) | 0;
    d = c;
    c = b;
    b = a;
    a = (one + two) | 0;
  }
  return [
    (state[0] + a) | 0, (state[1] + b) | 0, (state[2] + c) | 0, (state[3] + d) | 0,
    (state[4] + e) | 0, (state[5] + f) | 0, (state[6] + g) | 0, (state[7] + h) | 0,
  ];
}

/** Zero bits at the beginning of the digest of the prefix and a number; 32 are enough. */
function digester(prefix) {
  const text = new TextEncoder().encode(prefix);
  const bytes = new Uint8Array(text.length + 128);
  const view = new DataView(bytes.buffer);
  bytes.set(text);
  // The blocks before the number are the same each time.
  const fixed = text.length - (text.length % 64);
  let before = START;
  for (let at = 0; at < fixed; at += 64) before = compress(before, view, at);
  return (number) => {
    const digits = String(number);
    let end = text.length;
    for (let i = 0; i < digits.length; i += 1) bytes[end++] = digits.charCodeAt(i);
    const size = end;
    bytes[end++] = 0x80;
    // The length in bits ends the last block.
    const last = fixed + Math.ceil((size - fixed + 9) / 64) * 64;
    bytes.fill(0, end, last);
    view.setUint32(last - 4, size * 8);
    let state = before;
    for (let at = fixed; at < last; at += 64) state = compress(state, view, at);
    return Math.clz32(state[0]);
  };
}

addEventListener("message", ({ data: { prefix, bits } }) => {
  const zeroBits = digester(prefix);
  for (let number = 0; ; number += 1) {
    if (zeroBits(number) >= bits) return postMessage({ answer: String(number) });
    if (number % STEP === STEP - 1) postMessage({ tries: number + 1 });
  }
});
