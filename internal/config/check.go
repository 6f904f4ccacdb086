package config

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/sluice-proxy/sluice/internal/strict"
)

// check turns a v1alpha1 configuration into a Config and collects its problems.
type check struct {
	config   *v1alpha1.KubeProxyConfiguration
	file     *document         // nil: none
	byFlag   map[string]string // path of a field -> the flag that set it
	own      ownFlags
	binds    []Bind            // Options.Binds
	flags    map[string]string // Flags.values
	problems []Problem
	warnings []string
}

// problem reports an invalid field at path, or with dashes an invalid flag. It names the flag or the file that set the
// field.
func (c *check) problem(path, reason string) {
	root, _, _ := strings.Cut(path, "[")
	p := Problem{Field: c.name(root), Reason: reason}
	if !strings.HasPrefix(p.Field, "--") {
		p.Field = kind + "." + path
		if c.file != nil {
			p.File, p.Line = c.file.name, c.file.line(path)
		}
	}
	c.problems = append(c.problems, p)
}

func (c *check) warn(format string, args ...any) {
	c.warnings = append(c.warnings, fmt.Sprintf(format, args...))
}

// isSet reports whether a flag or the file sets the field, even to an empty value.
func (c *check) isSet(path string) bool {
	return c.byFlag[path] != "" || c.file.sets(path)
}

// name returns the name of the field in messages.
func (c *check) name(path string) string {
	if flag, ok := c.byFlag[path]; ok {
		return "--" + flag
	}
	return path
}

// between returns n, and reports a problem if it is not in the range.
func (c *check) between(path string, n *int32, low, high int32) int {
	if *n < low || *n > high {
		c.problem(path, invalid(*n, fmt.Sprintf("must be %d to %d", low, high)))
		return 0
	}
	return int(*n)
}

// atLeast0 returns n, and reports a problem if it is negative.
func atLeast0[N int32 | time.Duration](c *check, path string, n N) N {
	if n < 0 {
		c.problem(path, invalid(n, "must be 0 or more"))
	}
	return n
}

func (c *check) positive(path string, d time.Duration) time.Duration {
	if d <= 0 {
		c.problem(path, invalid(d, "must be more than 0"))
	}
	return d
}

func (c *check) oneOf(path, value string, choices []string) {
	if !slices.Contains(choices, value) {
		c.problem(path, fmt.Sprintf("Unsupported value: %q: must be one of %s%s",
			value, strings.Join(choices, ", "), alike(value, choices)))
	}
}

func (c *check) cidr(path, text string) (netip.Prefix, bool) {
	p, ok := strict.Prefix(text)
	if !ok {
		c.problem(path, invalid(text, "must be a CIDR such as 10.0.0.0/8 or fd00::/48"))
	}
	return p, ok
}

// prefixes checks a list of CIDRs, separated by commas, and returns each once.
func (c *check) prefixes(path, text string) (list []netip.Prefix) {
	for _, item := range splitList(text) {
		if p, ok := c.cidr(path, item); ok && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	return list
}

// device checks the name of a network interface, or the beginning of one.
func (c *check) device(path, name string, mode v1alpha1.LocalMode) string {
	switch {
	case name == "":
		c.problem(path, "Required value: detectLocalMode "+string(mode)+" needs it")
	case !regexp.MustCompile(`^[^\s/]{1,15}$`).MatchString(name):
		c.problem(path, invalid(name, "must be the name of a network interface: at most 15 bytes without spaces and slashes"))
	}
	return name
}

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
