"""Ordinary requests that need nothing from a library: being near one of these counts against a match."""

ORDINARY_REQUESTS = """
hello
good evening, how are you
thank you, that's great
yes
no, the other one
continue
stop
ok, do that
what is the capital of Italy
who discovered penicillin
when was the Eiffel tower built
how many people live in India
why is the ocean salty
what does this word mean
what's the difference between these two words
tell me a joke
tell me a story
write a poem about autumn
what should I watch tonight
recommend me a book
what is 15 percent of 80
convert inches to centimetres
solve this equation
translate this sentence into Italian
how do I cook pasta
how do I remove a stain
what's the weather like
what time is it
who won the game yesterday
how do birds fly
explain how something works in simple words
what is the definition of entropy
is it healthy to eat eggs every day
my head hurts
I feel sad today
what are you
can you help me
what can you do
give me an idea for a name
what's a good present for my sister
play some music
count from one to ten
what is a variable in programming
what is the difference between a class and an object
how does a hash table work
what does this error mean
what does this code do
list the files
show me the file
open the file
where is this function defined
rename this variable
run the command again
run it
undo that
which version is installed
count the lines
print the value
sort this list
write a function that adds two numbers
write a regular expression
how do I exit vim
make this sentence shorter
correct the spelling
find a synonym
read the first lines
what did you change
try again
Guten Tag
Danke
weiter
Was ist die Hauptstadt von Spanien?
Erzähl mir etwas Lustiges
Wie funktioniert das?
hola, ¿qué tal?
gracias
¿quién escribió este libro?
bonjour
merci
c'est quoi la capitale du Japon ?
obrigado
qual é a capital do Chile?
你好
谢谢
继续
今天几号
こんにちは
ありがとう
続けて
ciao
grazie
Wie spät ist es?
Wer hat das Telefon erfunden?
Wie viele Menschen leben auf der Erde?
Schreib ein kurzes Gedicht über den Herbst
Was soll ich heute Abend machen?
Warum ist das Wasser im Meer so blau?
Wie lange kocht man ein Ei?
Kannst du mir helfen?
¿qué hora es?
¿cuántos habitantes tiene México?
¿qué significa esta palabra?
escribe un poema corto sobre el otoño
¿por qué vuelan los pájaros?
¿cómo se cocina el arroz?
¿qué hago esta noche?
ayúdame, por favor
combien de temps faut-il pour cuire un œuf ?
qui a inventé le téléphone ?
pourquoi la mer est-elle bleue ?
écris un petit poème sur l'automne
que veut dire ce mot ?
combien d'habitants a la Suisse ?
qu'est-ce que je fais ce soir ?
tu peux m'aider ?
que horas são?
quem inventou o telefone?
o que significa esta palavra?
escreve um poema curto sobre o outono
como se faz arroz?
conta uma piada
che ore sono?
chi ha inventato il telefono?
cosa significa questa parola?
scrivi una breve poesia sull'autunno
raccontami una barzelletta
quanti abitanti ha Roma?
谁发明了电话
这个词是什么意思
世界上有多少人
写一首关于秋天的短诗
怎么煮鸡蛋
天空为什么是蓝色的
今晚做什么好
你能帮我吗
今何時ですか
電話を発明したのは誰ですか
この言葉の意味は何ですか
秋についての短い詩を書いて
卵は何分ゆでますか
日本の人口は何人ですか
冗談を言って
手伝ってくれますか
안녕하세요
고마워요
이 단어는 무슨 뜻인가요
농담 하나 해 줘
지금 몇 시예요
привет
спасибо
который час?
кто изобрёл телефон?
расскажи анекдот
что значит это слово?
dziękuję
która godzina?
merhaba
saat kaç?
hoe laat is het?
vertel een grap
hur mycket är klockan?
""".strip().splitlines()

ENGLISH = ORDINARY_REQUESTS.index("Guten Tag")
"""How many of them are in English; these stand first."""
