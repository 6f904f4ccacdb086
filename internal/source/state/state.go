// Package state is what every source can tell of itself.
package state

import "time"

// State is how a source is doing at one moment.
type State struct {
	From      string    // where it reads: the URL of an API server, or paths
	Connected bool      // it answers, or is followed
	Since     time.Time // Connected is as it is; zero: it never was another
	Trouble   string    // what is wrong now, for people; empty: nothing
	LastEvent time.Time // something was listed, read or changed; zero: never

	// Unrepeatable says why a new run of the program could not read everything that
	// this one has read; empty: it could.
	Unrepeatable string

	Problems int // objects or files that something is wrong with now

	Objects map[string]int // how many there are of each kind that was listed
	Files   int            // how many are read
}
