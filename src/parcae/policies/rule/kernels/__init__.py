"""The compiled rule: a function of the observation, the rule's parameters and the solo curves.

Every job has a price of executors. Its cap is the number p of executors that minimises
T(p) (1 + price p), where T(p) is its solo duration on p executors. Jobs are served by score,
smallest first, up to their caps. Executors that are left over may exceed the caps ("spill").

With several executor classes, a stage takes executors of the smallest class that it may use. A
class that is larger than necessary is borrowed. Whether a stage may borrow depends on its job, on
the number of jobs in the system and on the demand of other stages for such executors.

The rule can keep some executors idle in reserve for future jobs. It can also withhold executors
from a stage whose parents still run, because executors that wait there cannot work for other jobs.
"""
