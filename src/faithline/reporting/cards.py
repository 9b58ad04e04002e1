"""Short texts of the report: what each method, control and reference is. Metrics explain themselves in their catalogue."""

METHODS = {
    "saliency": "Gradient of the explained class's output with respect to the input. One backward pass.",
    "smooth_grad": "The gradient averaged over noisy copies of the input.",
    "input_x_gradient": "Gradient times input: a first-order estimate of what removing a feature does.",
    "guided_backprop": "The gradient, of which each ReLU passes on only what is positive where it is active.",
    "deconvolution": "The gradient, of which each ReLU passes on only what is positive, active or not.",
    "integrated_gradients": "Gradients averaged along the straight path from baseline to input, times the difference.",
    "expected_gradients": "Integrated gradients from random training rows instead of one baseline (GradientShap).",
    "deeplift": "Differences from the baseline propagated back through the layers by the rescale rule.",
    "deeplift_shap": "DeepLIFT from several training rows instead of one baseline, averaged.",
    "lrp": "The logit handed back layer by layer in proportion to what each input gave (epsilon and gamma rules).",
    "occlusion": "A window slides over the input; a feature gets the mean drop of the windows that cover it.",
    "feature_ablation": "Each feature is removed alone; its attribution is the drop.",
    "lime": "A linear model fitted to random masks, those near the full input weighing more (ridge on the mask bank).",
    "kernel_shap": "Shapley values by weighted least squares on masks of Shapley-kernel sizes, with the efficiency constraint.",
    "shapley_sampling": "Shapley values as mean gains over random orders in which the features come in; they sum to the effect.",
    "rise": "Mean value over the random masks that keep a feature, less the mean over all masks (from the mask bank).",
    "grad_cam": "Channels of the last convolution weighed by their mean gradient; signed, coarse.",
    "grad_cam_plus_plus": "Channels of the last convolution weighed by their positive gradients, cell by cell; coarse.",
    "score_cam": "Channels of the last convolution weighed by the value of the image seen through them; coarse.",
    "attention_rollout": "Attention followed back through the layers; knows no class and no sign.",
    "generic_attention": "Attention times its positive gradient, followed back through the layers (Chefer et al., 2021).",
    "banzhaf": "Least-squares fit on many fair-coin masks: estimates the maximiser of the paper's Eq. (1). A reference.",
    "exact_banzhaf": "The maximiser of Eq. (1), from all 2^n keep sets. A reference.",
    "exact_shapley": "Shapley values from all 2^n keep sets. A reference.",
    "oracle_prior": "For each sample, the prior method with the best mean rank on it: hindsight that nobody has. A reference.",
}
CONTROLS = {
    "random": "Random numbers, seeded. What a metric gives to a map that knows nothing; on easy games this is far from zero.",
    "mean_map": "The mean of the supervision maps, the same for every sample. Beating it shows that a map depends on its sample.",
    "edge": "Edges of the input image: looks plausible, has never seen the model.",
    "centre": "A bump in the middle of the image: photographs and digits are centred, so it often scores well.",
}
ROLES = {
    "explainer": ("Trained explainers", "networks that give a map in one forward pass"),
    "refined": (
        "Refined maps",
        "an explainer's map, refitted on some removals of the sample's own: shown apart, with the cost",
    ),
    "supervision": ("Prior methods", "ranked; those that curation keeps teach the explainers that imitate"),
    "baseline": ("Baselines", "ranked, but never teach"),
    "control": ("Controls", "maps that know nothing of the model or of the sample"),
    "reference": ("References", "exact values, large per-sample fits, hindsight: shown apart, never beaten"),
}
REASONS = {
    "kept": "passed every metric's quantile",
    "below_quantile": "below the quantile in a metric",
    "duplicate": "repeats an earlier method's map",
    "non_finite": "not finite, or zero everywhere",
}
GLOSSARY = {
    "attribution, map": "One number per feature; higher means more support for the explained class. Signed: 0 is neutral.",
    "feature": "A patch of an image, a token of a text, a column of a table.",
    "explained class": "The model's own first choice on the clean input, frozen while features are removed.",
    "baseline (of a removal)": "What a removed feature becomes: zero, the mean, the pad token, a blur.",
    "MoRF, LeRF": "Features are removed most relevant first, or least relevant first.",
    "mean rank": "On each sample and metric the candidates of the pool are ranked (ties share a rank); the mean, 1 is best.",
    "family rank": "DEL, RP, POS and IROF read one sweep, so ranks are averaged within four families, then over families.",
    "ceiling R(x)": "INF of the best linear fit, from all 2^n masks: no map exceeds it, and it is 1 only for an additive game.",
    "interval": "Bootstrap over test samples. A paired difference whose interval holds 0 is called undecided.",
    "Holm correction": "The explainer is compared with many candidates. Better and worse also need a signed-rank p value that "
    "passes Holm's procedure over all of them, so that the chance of one wrong claim a task stays at the level of an interval.",
    "undefined": "A metric that has no value on a sample (a constant map has no correlation) is null and counted, never 0.",
    "passes": "Forward evaluations of the target model for one explanation, a trained explainer's own network aside.",
    "passes to train": "Values of the bank that training read, one evaluation each, and clean inputs; a surrogate's stand apart.",
}
