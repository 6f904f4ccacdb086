package route

import (
	"fmt"
	"strings"
)

// Problem is a fault in an object. Only the address, port or object that it names is left out.
type Problem struct {
	Object string `json:"object"`          // "Service default/web"
	Field  string `json:"field,omitempty"` // "spec.externalIPs[0]"
	Value  string `json:"value,omitempty"`
	Reason string `json:"reason"`

	// Count is how many problems this one stands for, itself included; 0 means 1. If it is larger, Reason names it too.
	Count int `json:"count"`
}

// String returns the problem as one sentence.
func (p Problem) String() string {
	s := p.Object
	if p.Field != "" {
		s += ": " + p.Field
	}
	if p.Value != "" {
		s += ": " + p.Value
	}
	return s + ": " + p.Reason
}

// Weight returns how many problems this one stands for.
func (p Problem) Weight() int { return max(1, p.Count) }

// Times returns the problem so that it stands for count problems of its kind.
func (p Problem) Times(count int) Problem {
	if count > 1 {
		p.Count = count
		p.Reason += fmt.Sprintf(" (and %d more like it)", count-1)
	}
	return p
}

// Collector keeps MaxAlike of the problems that differ only in value and index; the last one counts the rest.
type Collector struct {
	list  []Problem
	alike map[Problem]*tail
}

// tail is the last problem kept of a group: how many were kept, its index and its count.
type tail struct{ kept, at, count int }

// Add adds a problem.
func (c *Collector) Add(p Problem) {
	if c.alike == nil {
		c.alike = map[Problem]*tail{}
	}
	list, _, _ := strings.Cut(p.Field, "[")
	key := Problem{Object: p.Object, Field: list, Reason: p.Reason}
	t := c.alike[key]
	if t == nil {
		t = &tail{}
		c.alike[key] = t
	}
	if t.kept == MaxAlike {
		t.count++
		return
	}
	t.kept++
	t.at, t.count = len(c.list), 1
	c.list = append(c.list, p)
}

// Problems returns the kept problems in the order in which they were added.
func (c *Collector) Problems() []Problem {
	for _, t := range c.alike {
		c.list[t.at] = c.list[t.at].Times(t.count)
		t.count = 1
	}
	return c.list
}
