"""Why numbers differ from the paper's, where it is known."""

from __future__ import annotations

REASONS: tuple[str, ...] = (
    "**Table 1, size of the errors.** The paper prints errors of hundreds and thousands on "
    "the two Poisson sets, whose true intensity "
    "has a variance of 2 and 34 on [0, 1]. No reading of its rates on one window gives both "
    "such errors and an average length of 30. We "
    "state window, oracle and mean count of each set.",
    "**Table 1, hawkes.** Weights that sum to 1 cannot count events, so that the paper's own "
    "form stays far above the .258 it prints; a "
    "sum with the same kernel reaches that. This is why our default does not normalise.",
    "**Table 1, the other sets.** Nothing inside the paper's link depends on the time that "
    "is asked about, so that exp(10 t - N(t)) and a "
    "bump in time are out of its reach. Our default has a drift.",
    "**The score.** (3) is a ratio while the text says softmax, and a Fourier kernel can be "
    "negative while scores are said to be "
    "positive. The paper's form uses softmax here; a plain ratio divides by about 0 within a "
    "few steps.",
    "**Table 2.** On [0, 1] a constant rate already scores more on hawkes and "
    "self_correcting than the best number printed, so that the "
    "paper's windows or units must have been others.",
    "**Table 2, real stand-ins.** The paper's form has the same two limits there: weights "
    "that sum to 1 do not see how many events there "
    "were, and nothing inside its link moves with the clock. Models that count events, HP "
    "and NHP, gain most where events come in bursts.",
    "**Algorithm 2** accepts where it should reject, and takes the present rate for a bound. "
    "**Algorithm 3** drops the event that has just "
    "come. Both are corrected in Fourpoint.",
    "**Proposition 2** is proved for paired phases while (7) has random ones, and its sigma "
    "must include the key embedding. It is true, "
    "and says nothing at D = 20.",
    "**The real sets** of the paper are not public. Open stand-ins take their places, with "
    "other sizes and units, so that only the order "
    "of models can be compared, never the size of a number.",
)
