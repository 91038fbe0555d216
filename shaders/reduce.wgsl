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
    for (var l = 0u; l < LENGTH; l++) {
        acc = combine(acc, element(first + l * INNER));
    }
    store(result, finish(acc));
}
