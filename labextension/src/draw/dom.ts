// Make elements without markup: attributes, listeners and text nodes only, so that no label is ever read as HTML.

export type Child = Node | string | number | null | undefined | false | Child[];
type Listener = (event: never) => void;
export interface Props {
  on?: Record<string, Listener>;
  [attribute: string]: unknown;
}

const SVG = "http://www.w3.org/2000/svg";

function fill(element: Element, props: Props | null, children: Child[]): void {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value as Record<string, Listener>))
        element.addEventListener(event, listener as EventListener);
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  append(element, children);
}

export function append(element: Element, children: Child[]): void {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child !== null && child !== undefined && child !== false)
      element.append(child instanceof Node ? child : String(child));
  }
}

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props?: Props | null,
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  if (element instanceof HTMLButtonElement) element.type = "button";
  fill(element, props ?? null, children);
  return element;
}

/** The classes of a small button. */
export const SMALL_BUTTON = "gd-button gd-small";

/** The commonest elements, by their class: `span("gd-muted", "12 nodes")`. */
export const span = (name: string, ...children: Child[]): HTMLSpanElement => h("span", { class: name }, ...children);
export const div = (name: string, ...children: Child[]): HTMLDivElement => h("div", { class: name }, ...children);
export const paragraph = (name: string, ...children: Child[]): HTMLParagraphElement =>
  h("p", { class: name }, ...children);
export const td = (name: string, ...children: Child[]): HTMLTableCellElement => h("td", { class: name }, ...children);

export function s<K extends keyof SVGElementTagNameMap>(
  tag: K,
  props?: Props | null,
  ...children: Child[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS(SVG, tag) as SVGElementTagNameMap[K];
  fill(element, props ?? null, children);
  return element;
}

/** An SVG path by its class. */
export const svgPath = (name: string, d: string, props?: Props): SVGPathElement =>
  s("path", { class: name, d, ...props });

export function replace(element: Element, ...children: Child[]): void {
  element.replaceChildren();
  append(element, children);
}

/** Write text only when it changed: live panels update twenty times a second. */
export function write(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

export const setFlag = (element: Element, name: string, on: boolean): void => {
  if (on !== element.hasAttribute(name)) element.toggleAttribute(name, on);
};

/** Whether a box lies wholly between top and bottom, and partly between left and right (long lines of code never fit).
 */
const inSight = (a: DOMRect, b: DOMRect): boolean =>
  a.top >= b.top - 1 && a.bottom <= b.bottom + 1 && a.left < b.right - 8 && a.right > b.left + 8;

type Events = HTMLElementEventMap;

/** Call back with every event of this name. */
export function listen<K extends keyof Events>(
  element: Element,
  name: K,
  listener: (event: Events[K]) => void,
  options?: AddEventListenerOptions,
): void {
  element.addEventListener(name, listener as EventListener, options);
}

/** Call back with the width of an element in whole pixels while it is shown, when it changed by more than one. */
export function onWidth(element: Element, changed: (width: number) => void): ResizeObserver {
  let before = 0;
  const observer = new ResizeObserver(([entry]) => {
    const width = Math.floor(entry!.contentRect.width);
    if (width === 0 || Math.abs(width - before) <= 1) return;
    changed((before = width));
  });
  observer.observe(element);
  return observer;
}

/** Call back with the element in `element` that is under the pointer or has the focus; with null when it has left. */
export function pointed(element: Element, changed: (target: Element | null) => void): void {
  for (const kind of ["pointerover", "focusin"] as const)
    listen(element, kind, event => changed(event.target as Element));
  for (const kind of ["pointerleave", "focusout"] as const) listen(element, kind, () => changed(null));
}

/** Keep an event from the page: it has been handled here. */
export function handled(event: Event): void {
  event.preventDefault();
  event.stopPropagation();
}

/** All elements in `root` that match. */
export const all = <T extends Element = Element>(root: ParentNode, selector: string): T[] => [
  ...root.querySelectorAll<T>(selector),
];

/** Return the rectangle of an element on the screen. */
export const boxOf = (element: Element): DOMRect => element.getBoundingClientRect();

/** Scroll `element` into its own scroller, and nothing else: the notebook stays where it is. */
export function reveal(scroller: HTMLElement, elements: Element[]): void {
  const frame = boxOf(scroller);
  if (frame.width === 0 || elements.length === 0) return;
  const boxes = elements.map(boxOf).filter(box => box.width + box.height > 0);
  const [first] = boxes;
  if (!first || boxes.some(box => inSight(box, frame))) return;
  if (first.top < frame.top || first.bottom > frame.bottom)
    scroller.scrollTop += first.top - frame.top - Math.max(8, (frame.height - first.height) / 3);
  if (first.left > frame.right - 8 || first.right < frame.left + 8)
    scroller.scrollLeft += first.left - frame.left - Math.max(8, (frame.width - first.width) / 2);
}
