"""Does a cache of KV pay: for this model, this GPU, this store and these requests?"""
