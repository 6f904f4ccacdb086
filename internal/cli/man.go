package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newMan(env Env) *cobra.Command {
	return &cobra.Command{
		Use:   "man",
		Short: "Print the manual page",
		Long: `Print the manual page, which has the help of all commands, in the language of man.

  read it     sluice man | man -l -
  install it  sluice man > /usr/local/share/man/man8/sluice.8`,
		Example: "  sluice man | man -l -",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return manual(cmd.Root(), env.Stdout) },
	}
}

// manual writes the help of a program as a page of section 8.
func manual(root *cobra.Command, w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH SLUICE 8 \"\" \"%s\"\n.SH NAME\n%s \\- %s\n", roff(version()), root.Name(), roff(root.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n[flags]\n.br\n.B %[1]s\nCOMMAND\n.SH DESCRIPTION\n", root.Name())
	writeText(&b, root.Long)
	b.WriteString(".SH COMMANDS\n")
	writeCommands(&b, root)
	b.WriteString(".SH OPTIONS\n")
	for _, g := range groupsOf(root) {
		fmt.Fprintf(&b, ".SS %s\n", roff(g.title))
		writeFlags(&b, g.flags)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeCommands(b *strings.Builder, parent *cobra.Command) {
	for _, cmd := range parent.Commands() {
		if !cmd.IsAvailableCommand() {
			continue
		}
		fmt.Fprintf(b, ".SS %s\n", roff(cmd.UseLine()))
		writeText(b, cmp.Or(cmd.Long, cmd.Short))
		writeFlags(b, cmd.LocalFlags())
		if cmd.HasExample() {
			writeText(b, "Examples:")
			writeText(b, cmd.Example)
		}
		writeCommands(b, cmd)
	}
}

// writeText writes paragraphs. Those with an indented line keep their lines.
func writeText(b *strings.Builder, text string) {
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if strings.HasPrefix(paragraph, "  ") || strings.Contains(paragraph, "\n  ") {
			fmt.Fprintf(b, ".PP\n.nf\n%s\n.fi\n", roff(paragraph))
		} else {
			fmt.Fprintf(b, ".PP\n%s\n", roff(paragraph))
		}
	}
}

func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := strings.TrimSuffix("--"+f.Name+" "+value, " ")
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if zero := []string{"", "0", "[]", "false", "0s"}; !slices.Contains(zero, f.DefValue) {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(name), roff(usage))
	})
}

// roff escapes text: no line of it is a request.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		return `\&` + text
	}
	return text
}
