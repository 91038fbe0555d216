// One invocation computes WIDTH neighbouring elements: it reads them from every operand, and writes them once.
@compute @workgroup_size(GROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = (((group.z * groups.y + group.y) * groups.x + group.x) * GROUP + lane) * WIDTH;
    if (i < SIZE) {
        point(i);
    }
}
