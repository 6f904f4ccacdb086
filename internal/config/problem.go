package config

import (
	"fmt"
	"strings"
)

// Problem is one error in the configuration.
type Problem struct {
	// Field is a path that starts with KubeProxyConfiguration, or a flag with its dashes.
	Field  string
	File   string // where the value comes from; empty for flags and defaults
	Line   int    // 0: none
	Reason string
}

// String returns the problem on one line.
func (p Problem) String() string {
	s := p.Field + ": " + p.Reason
	if p.Line > 0 {
		s += fmt.Sprintf(" (%s:%d)", p.File, p.Line)
	}
	return s
}

// InvalidError lists all errors in the configuration.
type InvalidError struct{ Problems []Problem }

// Error returns one line per problem.
func (e *InvalidError) Error() string {
	if len(e.Problems) == 1 {
		return "configuration: " + e.Problems[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "configuration: %d errors:", len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}

// invalid describes an invalid value, in the words of Kubernetes' validation.
func invalid(value any, reason string) string {
	if s, ok := value.(string); ok {
		return fmt.Sprintf("Invalid value: %q: %s", s, reason)
	}
	return fmt.Sprintf("Invalid value: %v: %s", value, reason)
}
