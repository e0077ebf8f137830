"""One store of a cache: what it is asked, what is written to it, and what leaves it.

StoreTier         the parts of a store; opened from the settings       store_tiers.py
Tier              a store with what was learnt about it                tier.py
Writer            chunks from pages into the store, behind             writer.py
BatchWriter       one batch of them, and why it was not taken          batch_writer.py
Losses            what the store has lost, to be written again         losses.py
Capacity          what leaves the store when it is full                capacity.py
MeasuredLimit     what a store without a limit turned out to hold      measured_limit.py
Coding            how chunks are encoded, where the link decides       coding.py
Known             what the store has said: of chunks, of prefixes      store_answers.py
StoreGenerations  what the store says of clears for everybody          generations.py
process_breaks    since when this process runs without a break         process_breaks.py
"""
