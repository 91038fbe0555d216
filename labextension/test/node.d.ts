// What the tests use of Node, so that its type package, which would also type the browser's code, stays away.
declare module "node:test" {
  export default function test(name: string, body: () => void | Promise<void>): void;
}
declare module "node:assert/strict" {
  const assert: {
    (value: unknown, message?: string): asserts value;
    ok(value: unknown, message?: string): asserts value;
    equal<T>(actual: unknown, wanted: T, message?: string): asserts actual is T;
    notEqual(actual: unknown, unwanted: unknown, message?: string): void;
    deepEqual<T>(actual: unknown, wanted: T, message?: string): asserts actual is T;
    match(text: string, pattern: RegExp, message?: string): void;
    throws(body: () => unknown, wanted?: RegExp | (new (...given: never[]) => Error)): void;
    rejects(body: Promise<unknown> | (() => Promise<unknown>), wanted?: RegExp): Promise<void>;
  };
  export default assert;
}
declare module "node:fs" {
  export function readFileSync(path: string | URL, encoding: "utf8"): string;
  export function readdirSync(path: string | URL): string[];
}
