// One invocation moves four neighbouring elements of a parameter and of its state, in place; neighbouring workgroups
// move one parameter, later ones the next.
@compute @workgroup_size(GROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    move_fours((group.z * groups.y + group.y) * groups.x + group.x, lane);
}
