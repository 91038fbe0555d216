// One invocation moves four neighbouring weights and their two moments, in place (Ziyin, Wang and Ueda, LaProp, 2020):
// the gradient is normalized before it enters the momentum; the corrections are 1 / (1 - beta^t) of this step.
@compute @workgroup_size(GROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = ((group.z * groups.y + group.y) * groups.x + group.x) * GROUP + lane;
    if (i < SIZE) {
        let g = clipped(gradient[i]);
        let v = beta2() * second_moment[i] + (1.0 - beta2()) * g * g;
        let m = beta1() * first_moment[i] + (1.0 - beta1()) * g / (sqrt(v * correction2()) + epsilon());
        first_moment[i] = m;
        second_moment[i] = v;
        weight[i] -= lr() * MULTIPLIER * (m * correction1());
    }
}
