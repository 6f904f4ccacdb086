package xtables

import "fmt"

// cut is what of a removal a table still has.
type cut struct {
	chains map[string]bool
	rules  map[place]bool // of chains that stay
}

// place is a rule by the index of its chain and its own.
type place struct{ chain, rule int }

func (c cut) empty() bool { return len(c.chains) == 0 && len(c.rules) == 0 }

// cut compares with the table as it is now. What is gone already is no error.
func (r Removal) cut(t Table) (cut, error) {
	c := cut{chains: make(map[string]bool), rules: make(map[place]bool)}
	builtin := make(map[string]bool, len(t.Chains))
	for _, chain := range t.Chains {
		builtin[chain.Name] = chain.Builtin
	}
	for _, name := range r.Chains {
		is, exists := builtin[name]
		if is {
			return cut{}, fmt.Errorf("remove chain %s: it is built in", name)
		}
		if exists {
			c.chains[name] = true
		}
	}
	c.find(t, r.Rules)
	return c, c.check(t)
}

// find looks the rules up, each once.
func (c cut) find(t Table, rules []ChainRule) {
	type key struct {
		chain string
		id    uint64
	}
	want := make(map[key]int, len(rules))
	for _, r := range rules {
		want[key{r.Chain, r.ID}]++
	}
	for i, chain := range t.Chains {
		if c.chains[chain.Name] {
			continue
		}
		for j, rule := range chain.Rules {
			k := key{chain.Name, rule.ID}
			if want[k] == 0 {
				continue
			}
			want[k]--
			c.rules[place{i, j}] = true
		}
	}
}

// check refuses to leave a rule that leads nowhere, as the kernel does.
func (c cut) check(t Table) error {
	for i, chain := range t.Chains {
		if c.chains[chain.Name] {
			continue
		}
		for j, rule := range chain.Rules {
			if rule.Jump && c.chains[rule.Target] && !c.rules[place{i, j}] {
				return fmt.Errorf("remove chain %s: rule %d of chain %s leads to it: %w",
					rule.Target, j+1, chain.Name, ErrInUse)
			}
		}
	}
	return nil
}

// apply returns the table without what is cut out.
func (c cut) apply(t Table) Table {
	rest := Table{TableID: t.TableID}
	for i, chain := range t.Chains {
		if c.chains[chain.Name] {
			continue
		}
		kept := Chain{Name: chain.Name, Builtin: chain.Builtin}
		for j, rule := range chain.Rules {
			if !c.rules[place{i, j}] {
				kept.Rules = append(kept.Rules, rule)
			}
		}
		rest.Chains = append(rest.Chains, kept)
	}
	return rest
}
