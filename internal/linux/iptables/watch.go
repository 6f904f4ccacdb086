package iptables

import "slices"

// lost is the What of an edit without details.
const lost = "notifications were lost"

// maxWhat is how many changes of an edit are named.
const maxWhat = 3

// found collects descriptions of changes.
type found struct{ what []string }

func (f *found) add(what string) {
	if len(f.what) <= maxWhat && !slices.Contains(f.what, what) {
		f.what = append(f.what, what)
	}
}

func (f *found) String() string {
	text := ""
	for i, what := range f.what {
		switch {
		case i == maxWhat:
			return text + " and more"
		case i > 0:
			text += ", "
		}
		text += what
	}
	return text
}
