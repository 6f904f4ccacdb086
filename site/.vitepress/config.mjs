// The site of docs/ and README.md, which stay as they are: all that GitHub shows differently is done here. `make site`
// runs this in .cache/site, which is two levels below the root of the project and has these pages.
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { posix, resolve } from 'node:path'
import sections from './sections.json'

const root = resolve('../..')
const repository = 'https://github.com/sluice-proxy/sluice'
const decisions = readdirSync(`${root}/docs/decisions`).filter((name) => /^\d+-.*\.md$/.test(name)).sort()

// address returns the path in the site of a page: README.md is the home, and docs/ has no folder of its own.
const address = (page) => page.replace(/^docs\//, '').replace(/(^|\/)README\.md$/, '$1index.md')

const isPage = (path) => /^(README|docs\/.+)\.md$/.test(path)

// titleOf returns the heading of a page as plain text.
const titleOf = (page) => readFileSync(`${root}/${page}`, 'utf8').match(/^# (.+)$/m)[1].replaceAll('`', '')

// shortTitleOf returns it without what follows a colon.
const shortTitleOf = (page) => titleOf(page).split(':')[0]

const item = (page, text) => ({ text, link: `/${address(page)}` })

// target returns the file that a relative link of a page leads to: of a folder with a page, this page.
function target(page, href) {
	const file = posix.join(posix.dirname(page), decodeURI(href.replace(/#.*/, ''))).replace(/\/$/, '')
	if (!existsSync(`${root}/${file}`)) {
		throw new Error(`${page}: ${href} leads nowhere`)
	}
	const index = `${file}/README.md`
	return isPage(index) && existsSync(`${root}/${index}`) ? index : file
}

// atGitHub returns the address of a file or folder that is not in the site.
const atGitHub = (file) => `${repository}/${statSync(`${root}/${file}`).isDirectory() ? 'tree' : 'blob'}/main/${file}`

// link changes a relative link, and its text if that is the name of the file.
function link(page, token, text) {
	const href = token.attrGet('href')
	if (/^(#|[a-z]+:)/.test(href)) {
		return
	}
	const file = target(page, href)
	token.attrSet('href', (isPage(file) ? `/${address(file)}` : atGitHub(file)) + (href.match(/#.*/) ?? ''))
	if (isPage(file) && text.type === 'text' && /^[\w./-]+\.md$/.test(text.content)) {
		text.content = shortTitleOf(file)
	}
}

function rules(md) {
	md.core.ruler.push('sluice', ({ tokens, env }) => {
		const page = posix.relative(resolve('.'), env.realPath ?? env.path)
		for (const block of tokens) {
			if (block.type === 'code_block') {
				block.type = 'fence' // the theme has no style for the other one
			}
			const inline = block.children ?? []
			inline.forEach((token, i) => token.type === 'link_open' && link(page, token, inline[i + 1]))
		}
	})
}

export default {
	title: 'Sluice',
	description: 'A Kubernetes service proxy, a drop-in replacement for kube-proxy',
	base: process.env.SITE_BASE || '/',
	outDir: `${root}/site/dist`,
	rewrites: address,
	buildConcurrency: 1, // the search index gets the pages in one order, so that two builds are equal
	markdown: {
		// As GitHub makes anchors of headings; hack/pages verifies the links to them.
		anchor: { slugify: (title) => title.trim().toLowerCase().replace(/[^\p{L}\p{M}\p{N}\p{Pc} -]/gu, '').replaceAll(' ', '-') },
		config: rules,
	},
	themeConfig: {
		search: { provider: 'local' },
		outline: [2, 3],
		nav: [{ text: 'GitHub', link: repository }],
		editLink: { pattern: `${repository}/edit/main/:path`, text: 'Edit this page' },
		sidebar: [
			...Object.entries(sections).map(([text, names]) => ({
				text,
				items: names.map((name) => item(`docs/${name}.md`, shortTitleOf(`docs/${name}.md`))),
			})),
			{
				text: 'Decisions',
				collapsed: true,
				items: [item('docs/decisions/README.md', 'All'), ...decisions.map((name) => item(`docs/decisions/${name}`, titleOf(`docs/decisions/${name}`)))],
			},
		],
	},
}
