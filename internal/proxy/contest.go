package proxy

import (
	"fmt"
	"strings"
	"time"
)

// Contest means that another program keeps changing the rules, so that they are missing
// repeatedly, or cannot be repaired. The zero value is no contest.
type Contest struct {
	Since   time.Time `json:"since"`
	Repairs int       `json:"repairs"`      // since then
	What    string    `json:"what"`         // the latest edit: "rule of KUBE-SERVICES in nat"
	By      string    `json:"by,omitempty"` // the program, if the kernel names it: "nft (thread 812)"
}

// Active reports whether there is one.
func (c Contest) Active() bool { return !c.Since.IsZero() }

// Program returns the name of the program without its number, as a label that does not change with each run of it.
func (c Contest) Program() string {
	name, _, _ := strings.Cut(c.By, " (")
	return name
}

// String returns which program changes the rules and what Sluice did.
func (c Contest) String() string {
	by := "another program (the kernel does not say which)"
	if c.By != "" {
		by = c.By
	}
	repaired := fmt.Sprintf("rules were repaired %d times", c.Repairs)
	if c.Repairs == 0 {
		repaired = "rules are missing and not repaired yet"
	}
	return fmt.Sprintf("%s repeatedly changed the rules of Sluice (last: %s): %s", by, c.What, repaired)
}
