package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
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

// off is the value in a file that switches a server off.
const off = "0"

// server holds the settings for the address of one server.
type server struct {
	name    string         // healthz or metrics, as in the names of the flags and of the field
	field   *string        // the value; replaced by its canonical form
	initial netip.AddrPort // the default
}

// server returns the address of a server, not valid if there is none.
//
// An empty value in a flag or in a file switches the server off. In a file that a
// program wrote with every field it counts as not set.
func (c *check) server(s server) netip.AddrPort {
	path, portFlag := s.name+"BindAddress", s.name+"-port"
	portText, portSet := c.flags[portFlag]
	port, err := parsePort(portText)
	if err != nil && portSet {
		c.problem("--"+portFlag, invalid(portText, err.Error()))
		return netip.AddrPort{}
	}
	if !portSet {
		port = s.initial.Port()
	}
	byFlag := c.byFlag[path] != ""
	addr, err := s.address(port, byFlag || c.isSet(path) && !c.file.dumped())
	if err != nil {
		c.problem(path, invalid(*s.field, err.Error()))
		return netip.AddrPort{}
	}
	if portSet {
		c.warn("--%s is deprecated, use --%s-bind-address", portFlag, s.name)
		if port == 0 || addr.IsValid() && !byFlag {
			addr = netip.AddrPortFrom(addr.Addr(), port)
		}
	}
	if addr.Port() == 0 {
		*s.field = off
		return netip.AddrPort{}
	}
	*s.field = addr.String()
	return addr
}

// address reads the field. An empty value that was set means no server.
func (s server) address(port uint16, set bool) (netip.AddrPort, error) {
	switch {
	case *s.field == off || *s.field == "" && set:
		return netip.AddrPort{}, nil
	case *s.field == "":
		return netip.AddrPortFrom(s.initial.Addr(), port), nil
	}
	return parseEndpoint(*s.field, port)
}

// parseEndpoint parses IP, [IP], IP:port and [IP]:port; port is the default.
func parseEndpoint(text string, port uint16) (netip.AddrPort, error) {
	if addr, ok := strict.Addr(text); ok {
		return netip.AddrPortFrom(addr, port), nil
	}
	host, number, err := net.SplitHostPort(text)
	if err != nil { // no port
		host, number, err = net.SplitHostPort(fmt.Sprintf("%s:%d", text, port))
	}
	addr, ok := strict.Addr(host)
	if err != nil || !ok {
		return netip.AddrPort{}, errors.New(`must be IP or IP:port, or "0" for no server`)
	}
	port, err = parsePort(number)
	return netip.AddrPortFrom(addr, port), err
}

// parsePort parses a port; the empty text is port 0.
func parsePort(text string) (uint16, error) {
	if text == "" {
		return 0, nil
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, errors.New("must be a port, 0 to 65535")
	}
	return uint16(port), nil
}
