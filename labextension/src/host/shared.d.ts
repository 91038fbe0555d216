// The few shapes of JupyterLab, Lumino and Node that are used; the real type packages weigh 332 MB.

declare module "*.css" {
  const text: string;
  export default text;
}

/** The style of the page, small (build.mjs). */
declare module "all-styles" {
  const text: string;
  export default text;
}

/** The layouts as a function whose text is a worker's program (build.mjs). */
declare module "layout-engine" {
  export function engine(): typeof import("../layout/engines.ts");
}

/** The key by which a service of the host is asked for. */
interface Token<T> {
  readonly service?: T;
}

declare module "@lumino/widgets" {
  export class Widget {
    constructor(options?: { node?: HTMLElement });
    id: string;
    readonly node: HTMLElement;
    readonly isDisposed: boolean;
    readonly disposed: { connect(slot: () => void): boolean };
    readonly title: { label: string; caption: string; closable: boolean };
    addClass(name: string): void;
    dispose(): void;
    protected onCloseRequest(message: unknown): void;
  }
}

declare module "@jupyterlab/rendermime" {
  import type { Widget } from "@lumino/widgets";
  export interface MimeModel {
    readonly trusted: boolean;
    readonly data: Record<string, unknown>;
    readonly metadata: Record<string, unknown>;
    setData(options: { data?: Record<string, unknown> }): void;
  }
  export interface Renderer extends Widget {
    renderModel(model: MimeModel): Promise<void>;
  }
  export interface RendererFactory {
    readonly safe: boolean;
    readonly mimeTypes: readonly string[];
    createRenderer(options: { mimeType: string }): Renderer;
  }
  export interface IRenderMimeRegistry {
    addFactory(factory: RendererFactory, rank?: number): void;
  }
  export const IRenderMimeRegistry: unique symbol;
}

declare module "@jupyterlab/docregistry" {
  import type { IRenderMimeRegistry } from "@jupyterlab/rendermime";
  export interface MimeDocumentOptions {
    name: string;
    label?: string;
    primaryFileType: FileType | undefined;
    fileTypes: readonly string[];
    defaultFor: readonly string[];
    readOnly?: boolean;
    dataType?: "string" | "json";
    modelName: string;
    rendermime: IRenderMimeRegistry;
    renderTimeout?: number;
  }
  export interface FileType {
    readonly name: string;
  }
  export class MimeDocumentFactory {
    constructor(options: MimeDocumentOptions);
  }
}

declare module "@jupyterlab/codemirror" {
  import type { Extension } from "@codemirror/state";
  export interface IEditorExtensionRegistry {
    addExtension(extension: { name: string; factory: () => unknown }): void;
  }
  export const IEditorExtensionRegistry: Token<IEditorExtensionRegistry>;
  export class EditorExtensionRegistry {
    static createImmutableExtension(extension: Extension): unknown;
  }
}

declare module "@codemirror/state" {
  export type Extension = object;
  export interface Range<T> {
    readonly from: number;
    readonly value: T;
  }
  export interface Line {
    readonly from: number;
    readonly to: number;
    readonly number: number;
  }
  export interface EditorState {
    readonly doc: { readonly lines: number; line(n: number): Line; lineAt(at: number): Line; toString(): string };
    readonly selection: { readonly main: { readonly empty: boolean } };
    sliceDoc(from: number, to?: number): string;
  }
  export interface Transaction {
    readonly effects: readonly { is(type: StateEffectType): boolean }[];
  }
  export interface StateEffectType {
    of(value: null): { is(type: StateEffectType): boolean };
  }
  export const StateEffect: { define<T>(): StateEffectType };
  export const Prec: { highest(extension: Extension): Extension };
}

declare module "@codemirror/view" {
  import type { EditorState, Extension, Range, Transaction } from "@codemirror/state";
  export interface DecorationSet {
    readonly size: number;
  }
  export class Decoration {
    range(from: number, to?: number): Range<Decoration>;
    static mark(spec: { class: string }): Decoration;
    static line(spec: { class: string }): Decoration;
    static widget(spec: { widget: WidgetType; side: number }): Decoration;
    static set(of: Range<Decoration>[], sort: boolean): DecorationSet;
    static readonly none: DecorationSet;
  }
  export abstract class WidgetType {
    abstract toDOM(): HTMLElement;
    eq(other: WidgetType): boolean;
  }
  export interface ViewUpdate {
    readonly view: EditorView;
    readonly docChanged: boolean;
    readonly viewportChanged: boolean;
    readonly transactions: readonly Transaction[];
  }
  export class EditorView {
    readonly state: EditorState;
    readonly visibleRanges: readonly { from: number; to: number }[];
    dispatch(change: { effects: unknown }): void;
    posAtCoords(at: { x: number; y: number }): number | null;
    static domEventHandlers(handlers: { click(event: MouseEvent, view: EditorView): void }): Extension;
  }
  export class ViewPlugin {
    static fromClass<T>(made: new (view: EditorView) => T, spec: { decorations(each: T): DecorationSet }): Extension;
  }
}

declare module "@jupyterlab/apputils" {
  export interface ICommandPalette {
    addItem(item: { command: string; category: string }): void;
  }
  export const ICommandPalette: unique symbol;
}

declare module "@jupyterlab/application" {
  import type { FileType, MimeDocumentFactory } from "@jupyterlab/docregistry";
  import type { Widget } from "@lumino/widgets";
  export interface JupyterFrontEnd {
    readonly restored: Promise<void>;
    readonly name: string;
    readonly shell: {
      readonly currentWidget: Widget | null;
      add(widget: Widget, area: string, options?: { mode?: string; ref?: string }): void;
      activateById(id: string): void;
    };
    readonly commands: {
      addCommand(id: string, options: { label: string; caption: string; isEnabled(): boolean; execute(): void }): void;
    };
    resolveOptionalService<T>(token: Token<T>): Promise<T | null>;
    readonly docRegistry: {
      addFileType(type: {
        name: string;
        displayName: string;
        extensions: readonly string[];
        mimeTypes: readonly string[];
        contentType: "file";
        fileFormat: "text";
      }): void;
      getFileType(name: string): FileType | undefined;
      addWidgetFactory(factory: MimeDocumentFactory): void;
    };
  }
  export interface JupyterFrontEndPlugin {
    id: string;
    description: string;
    autoStart: boolean;
    requires: readonly unknown[];
    optional?: readonly unknown[];
    activate(app: JupyterFrontEnd, ...services: never[]): void | Promise<void>;
  }
}

declare module "node:test" {
  export function test(name: string, body: () => void | Promise<void>): void;
}

declare module "node:assert/strict" {
  const assert: {
    (value: unknown, message?: string): void;
    equal(actual: unknown, expected: unknown, message?: string): void;
    deepEqual(actual: unknown, expected: unknown, message?: string): void;
    match(text: string, pattern: RegExp): void;
    throws(body: () => unknown, expected?: RegExp): void;
    rejects(body: Promise<unknown>, expected?: RegExp): Promise<void>;
    ok(value: unknown, message?: string): void;
  };
  export default assert;
}

declare module "node:fs" {
  export function readFileSync(path: string | URL, encoding: "utf8"): string;
}
declare module "node:zlib" {
  export function gzipSync(text: string): { toString(encoding: "base64"): string };
}
declare module "node:process" {
  export function cwd(): string;
}
