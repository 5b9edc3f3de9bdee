"""The load of a mixture of experts, in fair shares."""

from helpers.show import experts
from helpers.show import notebook as show


def test_experts_load_is_told_in_fair_shares(shown):
    rows = [{"event": "step", "step": 1, "expert_load": [[0.5, 0.5, 0, 0], [0.25] * 4]}]
    show.expert_load(rows)
    assert shown[0]["data"]["text/plain"] == "load of 4 experts in 2 layers, fair share 1: 0.00 … 2.00"
    assert experts.busiest(rows[0]) == 2.0 and experts.busiest({"expert_load": "?"}) is None
