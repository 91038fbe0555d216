// One invocation does one unit of work.
@compute @workgroup_size(LANES * ACROSS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let wanted = ((group.z * groups.y + group.y) * groups.x + group.x) * ACROSS + lane;
    if (wanted < UNITS) {
        unit(wanted);
    }
}
