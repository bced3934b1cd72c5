"""Small models written a second time, with other names, other nesting and fused or split projections.

Each was written from the architecture's description, takes its weights from the model it stands against
(``copy_from``) and must give the same outputs; ``TRUTH`` says by hand which of its modules is which of the other's.
"""
