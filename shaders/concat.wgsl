// One element of the result, whose runs of RUN elements hold PART0 of the first operand, then PART1 of the second, and so on:
// an operand ends at END0, END1, ... Operands that a call does not have are empty.
fn unit(i: u32) {
    let run = i / RUN;
    let at = i % RUN;
    if (at < END0) {
        store(i, values0_at(run * PART0 + at));
    } else if (at < END1) {
        store(i, values1_at(run * PART1 + at - END0));
    } else if (at < END2) {
        store(i, values2_at(run * PART2 + at - END1));
    } else if (at < END3) {
        store(i, values3_at(run * PART3 + at - END2));
    } else if (at < END4) {
        store(i, values4_at(run * PART4 + at - END3));
    } else if (at < END5) {
        store(i, values5_at(run * PART5 + at - END4));
    } else {
        store(i, values6_at(run * PART6 + at - END5));
    }
}
