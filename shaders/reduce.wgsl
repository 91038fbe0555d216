// One invocation computes one result: it folds LENGTH elements that lie INNER apart, each read once.
@compute @workgroup_size(ACROSS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let result = ((group.z * groups.y + group.y) * groups.x + group.x) * ACROSS + lane;
    if (result >= RESULTS) {
        return;
    }
    let first = result / INNER * LENGTH * INNER + result % INNER;
    var acc = start(first);
    var l = 0u;
    for (; l + 3u < LENGTH; l += 4u) {
        let i = first + l * INNER;
        let pair = combine(element(i), element(i + INNER));
        acc = combine(acc, combine(pair, combine(element(i + 2u * INNER), element(i + 3u * INNER))));
    }
    for (; l < LENGTH; l++) {
        acc = combine(acc, element(first + l * INNER));
    }
    store(result, finish(acc));
}
