package ledger

// use is what a plan changes about a shared entry.
type use[V comparable] struct {
	by            int32 // how many Services more need it
	needed, needs bool  // by a Service before and after
	old, now      V
}

// need notes that a Service needs a shared entry (1), or needed it before (-1).
func (p *Plan[K, V]) need(e Entry[K, V], by int32) {
	u := p.uses[e.Key]
	u.by += by
	if by < 0 {
		u.needed, u.old = true, e.Value
	} else {
		u.needs, u.now = true, e.Value
	}
	p.uses[e.Key] = u
}

// share plans a shared entry that so many Services needed before.
func (p *Plan[K, V]) share(key K, u use[V], before int32) {
	after := before + u.by
	switch {
	case before == 0 && after > 0:
		p.want(p.came(key), Entry[K, V]{key, u.now}, u.now, Absent)
	case before > 0 && after == 0:
		p.remove(p.gone(key), Entry[K, V]{key, u.old})
	case after > 0 && u.needed && u.needs && u.old != u.now:
		p.want(p.came(key), Entry[K, V]{key, u.now}, u.old, Different)
	}
}

// came is where an entry that belongs to no single Service is added: a target
// before all Services, anything else after them.
func (p *Plan[K, V]) came(key K) *group[K, V] {
	if p.handling(key).Target {
		return &p.first
	}
	return &p.last
}

// gone is where an entry that belongs to no single Service is removed: a shared one
// that is no target before all Services, anything else after them.
func (p *Plan[K, V]) gone(key K) *group[K, V] {
	if k := p.handling(key); k.Shared && !k.Target {
		return &p.first
	}
	return &p.last
}

// count takes over how many Services need each shared entry.
func (p *Plan[K, V]) count(counts map[K]int32) {
	for key, u := range p.uses {
		if n := counts[key] + u.by; n > 0 {
			counts[key] = n
		} else {
			delete(counts, key)
		}
	}
}
