package iptables

import (
	"slices"
	"strings"
)

// lost is the What of an edit without details.
const lost = "notifications were lost"

// maxWhat is how many changes of an edit are named.
const maxWhat = 3

// found has descriptions of changes.
type found []string

func (f *found) add(what string) {
	if !slices.Contains(*f, what) && len(*f) <= maxWhat {
		*f = append(*f, what)
	}
}

func (f *found) String() string {
	text := strings.Join((*f)[:min(len(*f), maxWhat)], ", ")
	if len(*f) > maxWhat {
		text += " and more"
	}
	return text
}
