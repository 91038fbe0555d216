// One node as a line of text, as Python prints it.

import { typeText, type GraphDoc, type Stage } from "./doc.ts";

const attribute = ([name, value]: [string, unknown]): string => `${name}=${JSON.stringify(value)}`;

export function nodeText(doc: GraphDoc, stage: Stage, index: number): string {
  const node = stage.nodes[index]!;
  const attrs = Object.entries(node.attrs ?? {}),
    isLeaf = node.inputs.length === 0 && attrs.some(([key]) => key === "name");
  const words = [
    ...node.inputs.map(a => `%${a}`),
    ...attrs.map(([key, value]) => (isLeaf && key === "name" ? JSON.stringify(value) : attribute([key, value]))),
  ];
  const name = node.name && !isLeaf ? ` "${node.name}"` : "";
  return `%${index}${name} = ${node.op}(${words.join(", ")}) : ${typeText(doc, node)}`;
}
