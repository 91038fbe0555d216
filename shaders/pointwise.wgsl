// One invocation computes WIDTH neighbouring elements, EACH times: it reads them from every operand, writes them once.
@compute @workgroup_size(GROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = ((group.z * groups.y + group.y) * groups.x + group.x) * EACH * GROUP + lane;
    for (var e = 0u; e < EACH; e++) {
        let i = (first + e * GROUP) * WIDTH;
        if (i < SIZE) {
            point(i);
        }
    }
}
