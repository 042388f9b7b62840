// What stands before a search cluster in the tests: `tls KEY CERTIFICATE` ends TLS, `proxy` is one, also for CONNECT, and
// `prefix` passes on what is below /es. Each passes everything to HOST:PORT. Prints its own port.

const http = require('http')
const net = require('net')
const tls = require('tls')
const fs = require('fs')

const [target, mode, key, certificate] = process.argv.slice(2)
const [host, port] = target.split(':')

function join(client, before) {
    const server = net.connect(port, host, () => {
        client.write(before)
        client.pipe(server).pipe(client)
    })
    for (const [one, other] of [[client, server], [server, client]]) one.on('error', () => other.destroy())
}

function pass(request, answer) {
    const url = new URL(request.url, 'http://it')
    const prefix = mode === 'prefix' ? '/es' : ''
    if (!url.pathname.startsWith(prefix + '/')) return answer.writeHead(404).end()
    const path = url.pathname.slice(prefix.length) + url.search
    const passed = http.request({ host, port, path, method: request.method, headers: request.headers }, found => {
        answer.writeHead(found.statusCode, found.headers)
        found.pipe(answer)
    })
    passed.on('error', () => answer.destroy())
    request.pipe(passed)
}

const server = mode === 'tls'
    ? tls.createServer({ key: fs.readFileSync(key), cert: fs.readFileSync(certificate) }, client => join(client, ''))
    : http.createServer(pass).on('connect', (_, client) => join(client, 'HTTP/1.1 200 Connected\r\n\r\n'))
server.listen(0, '127.0.0.1', () => console.log(server.address().port))
